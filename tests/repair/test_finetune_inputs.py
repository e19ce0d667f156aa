import pytest
import torch
import torch.nn.functional as F
from loops import filled, moved, state
from torch import nn

from forgetless import Buffer, finetune, networks
from forgetless.repair.objective import Objective


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps is 0; it must be a whole number of 1 or more"),
        ({"batch": 0}, "batch is 0; it must be a whole number"),
        ({"lr": 0.0}, "lr is 0.0; it must be a finite number above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"distill": -1.0}, "distill is -1.0; it must be a finite number of 0 or more"),
        ({"distill": 0.5}, "distill is 0.5, which needs the column 'logits'; the buffer has x, y"),
        ({"autocast": torch.float16}, "use torch.bfloat16"),
        ({"names": ["fc9.weight"]}, "no parameter or float buffer named 'fc9.weight'"),
    ],
)
def test_bad_settings_are_refused_before_anything_moves(settings, match):
    model = networks.mlp(5, inputs=4)
    before = state(model)
    with pytest.raises(ValueError, match=match):
        finetune(model, filled(x=torch.rand(64, 4)), **{"names": list(before), **settings})
    assert moved(before, model) == set()


def test_labels_out_of_range_are_refused_before_anything_moves():
    model = networks.mlp(5, inputs=4)
    before = state(model)
    buffer = filled(x=torch.rand(64, 4), y=torch.full((64,), 5))
    with pytest.raises(ValueError, match="labels from 5 to 5; the network has 5 outputs, so they must be 0 to 4"):
        finetune(model, buffer, list(before))
    assert moved(before, model) == set()


def test_an_empty_buffer_is_refused():
    with pytest.raises(ValueError, match="the buffer is empty"):
        finetune(networks.mlp(5), Buffer(4), ["fc1.weight"])


def test_a_mapping_becomes_keyword_arguments():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, values, mask):
            return {"logits": self.fc(values * mask)}

    model = Keywords()
    buffer = Buffer(8)
    y = torch.zeros(8, dtype=torch.int64)
    buffer.add({"x.values": torch.rand(8, 4), "x.mask": torch.ones(8, 4), "y": y})
    first, *_, last = finetune(model, buffer, ["fc.weight", "fc.bias"], steps=20, lr=0.5).losses
    assert last < first / 2


def test_a_network_that_returns_no_tensor_is_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    with pytest.raises(TypeError, match=r"the network returned a tuple, not a tensor of logits: use forward="):
        finetune(Pair(4, 5), filled(x=torch.rand(64, 4)), ["weight"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_dtype(dtype):
    buffer = filled(x=torch.rand(64, 4), y=torch.randint(5, (64,)).to(dtype))
    finetune(networks.mlp(5, inputs=4), buffer, ["fc3.bias"], steps=1)


def test_labels_that_cross_entropy_ignores_are_no_error():
    y = torch.randint(5, (64,))
    y[::2] = -100
    finetune(networks.mlp(5, inputs=4), filled(x=torch.rand(64, 4), y=y), ["fc3.bias"], steps=1)


def test_a_loss_or_output_that_cannot_fit_is_refused():
    model = networks.mlp(5, inputs=4)
    buffer = filled(x=torch.rand(64, 4), logits=torch.zeros(64, 7))
    with pytest.raises(ValueError, match="nothing to finetune: of the 0 tensors named"):
        finetune(model, buffer, [])
    with pytest.raises(ValueError, match=r"stored logits have shape \(7,\), the network's have \(5,\)"):
        finetune(model, buffer, ["fc3.bias"], distill=0.1)
    with pytest.raises(ValueError, match=r"loss returned a tensor of shape \(32,\)"):
        finetune(model, buffer, ["fc3.bias"], loss=lambda logits, y: F.cross_entropy(logits, y, reduction="none"))
    with pytest.raises(ValueError, match=r"output has shape \(32,\); it must be \(batch, classes\)"):
        finetune(model, buffer, ["fc3.bias"], forward=lambda model, x: model(x)[:, 0])
    with pytest.raises(ValueError, match="augment or forward made 10 rows of logits from 32 examples"):
        finetune(model, buffer, ["fc3.bias"], augment=lambda x: x[:10])
    with pytest.raises(ValueError, match="augment or forward made 1 rows of logits from 32 examples"):
        matching = filled(x=torch.rand(64, 4), logits=torch.zeros(64, 5))  # of which one row would be taken for all
        finetune(
            model, matching, ["fc3.bias"], distill=0.1, forward=lambda model, x: model(x[:1]),
            loss=lambda logits, y: logits.square().mean(),
        )  # fmt: skip


def test_a_buffer_without_labels_is_refused():
    network, full, other, empty = nn.Linear(4, 3), Buffer(8, seed=0), Buffer(8, seed=0), Buffer(8, seed=0)
    full.add({"x": torch.rand(8, 4), "y": torch.randint(3, (8,))})
    other.add({"x": torch.rand(8, 4)})
    with pytest.raises(ValueError, match="finetuning needs the column 'y'; the buffer has x"):
        finetune(network, other, ["weight"])
    with pytest.raises(ValueError, match="the buffer is empty: add examples first"):
        finetune(network, empty, ["weight"])
    assert finetune(network, full, "weight", steps=1).names == ("weight",)


def test_a_buffer_without_inputs_is_refused():
    network = nn.Linear(2, 2)
    buffer = Buffer(4)
    buffer.add({"image": torch.rand(4, 2), "y": torch.arange(4) % 2})
    with pytest.raises(ValueError, match=r"needs the column 'x'; the buffer has image, y"):
        finetune(network, buffer, ["weight"])


def test_class_156_in_uint8_is_a_label():
    """−100 in eight bits is 156."""
    assert Objective().examples({"y": torch.tensor([156, 3], dtype=torch.uint8)}, distill=0.0) == 2
    assert Objective().examples({"y": torch.tensor([156, -100], dtype=torch.int16)}, distill=0.0) == 1
