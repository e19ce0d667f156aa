import copy

import torch

from forgetless import Finetune, networks
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import TaskEnded, Trained
from forgetless.training.loop import train
from helpers import image_stream, narrow_resnet, run_small, small_network, small_stream

STREAM = small_stream(per_class=30)


def test_a_frozen_group_stays_after_the_first_task():
    model = small_network()
    after = {}
    for event in train(STREAM, SGD(), model, epochs=1, batch=6, lr=0.2, freeze=["fc1"]):
        if isinstance(event, TaskEnded):
            after[event.task] = copy.deepcopy(model.state_dict())
    assert torch.equal(after[1]["fc1.weight"], after[3]["fc1.weight"])
    assert not torch.equal(after[1]["fc2.weight"], after[3]["fc2.weight"])
    assert not torch.equal(small_network().state_dict()["fc1.weight"], after[1]["fc1.weight"])


class Scaled(torch.nn.Sequential):
    """An MLP in a module that has a buffer of its own, which counts while it trains, and dropout below it."""

    def __init__(self):
        super().__init__(small_network(), torch.nn.Dropout(0.1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


def test_a_frozen_buffer_does_not_freeze_inner_modules():
    model = Scaled()
    calls = {}
    for event in train(STREAM, SGD(), model, batch=6, lr=0.05, freeze="buffers"):
        if isinstance(event, TaskEnded):
            calls[event.task] = float(model.calls), model[1].training
    assert calls == {1: (10.0, True), 2: (10.0, True), 3: (10.0, True)}


def test_frozen_batch_norm_statistics_stay():
    stream = small_stream(per_class=8)
    model = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    after = {}
    for event in train(stream, SGD(), model, epochs=1, batch=8, lr=0.05, freeze=["bn.affine", "bn.stats"]):
        if isinstance(event, TaskEnded):
            after[event.task] = copy.deepcopy(model.state_dict())
    moved = {name for name in after[1] if not torch.equal(after[1][name], after[3][name])}
    assert not [name for name in moved if "bn" in name or "shortcut.1" in name]
    assert "conv1.weight" in moved


def test_frozen_groups_are_not_finetuned():
    _, result = run_small(freeze=["fc1"], finetune=Finetune(steps=5, groups="all", batch=12))
    assert result.finetunings[0].groups == result.profile.chosen == ("fc2",)


def test_a_finetuning_moves_statistics_unless_they_are_frozen():
    stream = image_stream()
    for freeze, groups in ((["bn.stats"], "all"), ([], ("bn.stats",))):
        model = with_seed(lambda: networks.resnet18(4, width=4), 0)
        events = train(
            stream, SGD(), model, epochs=1, batch=8, lr=0.05, buffer=24, freeze=freeze,
            finetune=Finetune(steps=3, groups=groups, batch=8),
        )  # fmt: skip
        for event in events:
            if isinstance(event, Trained):
                before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        statistics = {name for name in before if "running" in name or "num_batches" in name}
        assert moved == (before.keys() - statistics if freeze else statistics)


def test_after_a_run_nothing_stays_frozen():
    network = networks.mlp(6, inputs=4, hidden=(8,))
    *_, last = train(small_stream(), SGD(), network, batch=6, freeze="fc1")
    assert last.result.network is network
    assert all(parameter.requires_grad for parameter in network.parameters())
    norm = narrow_resnet(6, 1)
    list(train(small_stream(), SGD(), norm, batch=6, lr=1e-3, freeze=("bn.affine", "bn.stats")))
    assert all(module.training == norm.training for module in norm.modules())
    assert all(parameter.requires_grad for parameter in norm.parameters())
