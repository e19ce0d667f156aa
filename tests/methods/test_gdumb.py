"""GDumb: its schedule, CutMix, and training on the memory alone."""

import pytest
import torch

from forgetless.methods.gdumb import GDumb, cut_and_mix, learning_rate
from forgetless.methods.learner import Batch
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.repair.settings import Finetune
from forgetless.training.events import Ended, Trained
from forgetless.training.loop import train
from helpers import scaled, small_stream


def test_gdumb_trains_on_its_memory_alone(stream, make_network, make_learner):
    model = make_network(hidden=(20,))
    before = [p.detach().clone() for p in model.parameters()]
    learner = make_learner(model, capacity=24, policy="balanced")
    method = GDumb(memory_epochs=60, lr_high=0.5, cutmix=0.0)
    method.begin(learner)
    for number, task in enumerate(stream.tasks):
        for x, y in zip(task.train.x.split(4), task.train.y.split(4), strict=True):
            method.step(learner, Batch(x, y, number))
            learner.buffer.add({"x": x, "y": y})
    assert all(torch.equal(p, start) for p, start in zip(model.parameters(), before, strict=True))
    assert learner.buffer["y"].bincount().tolist() == [4] * 6
    list(method.finish(learner))
    right = model(scaled(learner.buffer["x"])).argmax(1) == learner.buffer["y"]
    assert right.float().mean() > 0.8


def test_the_learning_rate_equals_torchs_warm_restarts():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=0.0005)
    expected = [0.005, 0.05]
    for _ in range(2, 40):
        optimizer.step()
        schedule.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert [learning_rate(epoch, 0.05, 0.0005) for epoch in range(40)] == pytest.approx(expected)


def test_cutmix_pastes_a_box():
    mixed, share = cut_and_mix(torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8), torch.tensor([0.75, 0.5, 0.5]))
    # side √¼ = ½ of 8: a box of 4×4 around (4, 4)
    assert mixed[0, 0].sum() == 16
    assert bool((mixed[0, 0, 2:6, 2:6] == 1).all())
    assert share == 1 - 16 / 64


def test_cutmix_of_features_pastes_an_interval():
    """Labels are mixed by the share that is left of each of them."""
    mixed, share = cut_and_mix(torch.zeros(3, 8), torch.ones(3, 8), torch.tensor([0.5, 0.9, 0.5]))
    assert mixed.tolist() == [[0, 0, 1, 1, 1, 1, 0, 0]] * 3  # half of 8 around 4
    assert share == 0.5


def test_all_epochs_run_after_an_interrupted_run():
    def run(method):
        model = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
        return train(small_stream(), method, model, batch=6, lr=0.1, buffer=12)

    used = GDumb(memory_epochs=6)
    broken = run(used)
    next(event for event in broken if used.epoch == 5)
    broken.close()
    ends = [event.result for m in (used, GDumb(memory_epochs=6)) for event in run(m) if isinstance(event, Ended)]
    assert ends[0].flops == ends[1].flops
    assert ends[0].accuracy_matrix == ends[1].accuracy_matrix


def test_training_starts_from_the_initial_network_within_k_fpf():
    stream = small_stream(per_class=12)
    model = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    method = GDumb(memory_epochs=1, lr_high=1e-12, lr_low=0.0)
    finetune = Finetune.k_fpf(4, steps=3, groups="all", batch=6)
    for event in train(stream, method, model, batch=6, lr=0.1, buffer=12, finetune=finetune):
        if isinstance(event, Trained):
            after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-9)
        assert not torch.equal(model.state_dict()[name], tensor)  # which the last finetuning moved
