import dataclasses
import math
from typing import ClassVar

import pytest
import torch

from forgetless import Finetune, NonFiniteError, networks
from forgetless.data.builders import from_tensors
from forgetless.methods.er import ER
from forgetless.methods.gdumb import GDumb
from forgetless.methods.icarl import ICaRL
from forgetless.methods.joint import Joint
from forgetless.methods.sgd import SGD
from forgetless.training.loop import train
from helpers import FINETUNE, image_stream, run_small, small_stream


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"epochs": 0}, "epochs is 0; it must be a whole number of 1 or more"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": math.nan}, "lr is nan; it must be a finite number above 0"),
        ({"method": ER(), "buffer": 5}, "buffer is 5, but 6 examples are drawn at a time .* must be 6 or more"),
        ({"finetune": Finetune(batch=40)}, "buffer is 36, but finetuning draws 40 examples at a time"),
        (
            {"method": GDumb(), "finetune": FINETUNE},
            "groups is 'auto', but GDumb never trains on one task after another",
        ),
        ({"method": ICaRL(), "stream": small_stream(scenario="domain")}, "ICaRL is for class-incremental streams only"),
        ({"freeze": ["fc9"]}, "no group named 'fc9'"),
        ({"freeze": ["fc1", "fc2"]}, "freeze is fc1, fc2; nothing would be left to train"),
        ({"method": Joint(), "freeze": ["fc1"]}, "freeze is fc1, but Joint has no second task before which to freeze"),
        (
            {"freeze": ["fc2"], "finetune": Finetune(groups=("fc2",), batch=12)},
            "groups is fc2, freeze is fc2; nothing would be left to finetune",
        ),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must be a finite number of 0 or more"),
        ({"buffer": -3}, "buffer is -3; it must be a whole number of 0 or more"),
    ],
)
def test_bad_settings_are_refused_before_training(settings, match):
    with pytest.raises(ValueError, match=match):
        run_small(**settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps is 0; it must be a whole number of 1 or more"),
        ({"every": 0}, "every is 0; it must be a whole number of 1 or more"),
    ],
)
def test_bad_finetune_settings_are_refused_when_made(settings, match):
    with pytest.raises(ValueError, match=match):
        Finetune(**settings)


class Wordy(torch.nn.Module):
    """Gives its logits in a mapping."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)

    def forward(self, x):
        return {"logits": self.fc(x.flatten(1))}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"stream": "seq-digits"}, "stream is 'seq-digits'; it must be an object of the class Stream"),
        ({"method": ER}, "method is the class ER; it must be an object of the class Method"),
        ({"method": "er"}, "method is 'er'; it must be an object of the class Method"),
        ({"network": "mlp"}, "network is 'mlp'; it must be an object of the class Module"),
        ({"finetune": {"steps": 3}}, r"finetune is {'steps': 3}; it must be Finetune"),
        ({"network": Wordy()}, "the network returns a dict; it must return logits, a tensor"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused(change, match):
    given = {"stream": small_stream(), "method": ER(), "network": networks.mlp(6, inputs=4), "finetune": None} | change
    with pytest.raises(ValueError, match=match):
        list(train(given.pop("stream"), given.pop("method"), given.pop("network"), buffer=40, **given))


def test_the_pad_of_a_finetuning_is_checked():
    network = networks.mlp(4, inputs=192)
    for pad, said in (
        (-1, "pad is -1; it must be a whole number of"),
        (8, "is 8; it must be below the images' 8 pixels"),
    ):
        with pytest.raises(ValueError, match=said):
            train(image_stream(), SGD(), network, buffer=40, finetune=Finetune(pad=pad))
    x, y = torch.rand(40, 6), torch.arange(2).repeat(20)
    plain = from_tensors(x, y, [2])
    with pytest.raises(ValueError, match=r"it must be 0, as shape \(6,\) is not an image"):
        train(plain, SGD(), networks.mlp(2, inputs=6), buffer=40, finetune=Finetune(pad=1))


@pytest.mark.parametrize("method", [GDumb, ICaRL])
def test_a_policy_is_refused_if_methods_fill_the_buffer(method):
    with pytest.raises(
        ValueError, match=f"policy is 'balanced', but {method.__name__} fills the buffer in its own way"
    ):
        run_small(method(), policy="balanced")


def test_an_unused_or_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="policy is 'balanced', but neither SGD nor a finetuning uses a buffer"):
        run_small(SGD(), policy="balanced")
    with pytest.raises(ValueError, match="policy is 'ring'; it must be one of reservoir, balanced"):
        run_small(ER(), policy="ring")


def test_a_missing_column_is_named():
    class Mute(SGD):
        def step(self, learner, batch):
            return super().step(learner, batch)[0], {}

    with pytest.raises(ValueError, match=r"step\(\) of Mute does not return logits, which its columns or the"):
        run_small(Mute(), finetune=Finetune(distill=0.5, batch=12))


def test_an_unknown_memory_is_refused():
    @dataclasses.dataclass
    class Typo(ER):
        memory: ClassVar[str] = "resevoir"

    with pytest.raises(ValueError, match="Typo.memory is 'resevoir'; it must be none, reservoir, balanced or own"):
        run_small(Typo())


def test_a_loss_that_is_not_finite_names_the_epoch():
    with pytest.raises(NonFiniteError, match="the loss became .* in epoch 1 of task 1; try a smaller lr than 1e"):
        run_small(lr=1e20)


def test_a_step_on_raw_bytes_is_told_to_augment():
    class Bare(SGD.__base__):
        def step(self, learner, batch):
            logits = learner.forward(batch.x)
            return logits.sum().detach(), {}

    with pytest.raises(RuntimeError, match=r"learner\.augment\(batch\.x\) returns inputs"):
        list(train(image_stream(), Bare(), networks.mlp(4, inputs=192)))
