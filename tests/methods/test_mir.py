"""MIR: interference scores, the chosen examples and FLOPs."""

import copy

import pytest
import torch
import torch.nn.functional as F

from forgetless.experiments.presets import preset
from forgetless.methods.er import ER
from forgetless.methods.mir import MIR, interference
from forgetless.networks import mlp
from forgetless.training.loop import train
from forgetless.training.metrics import accuracy
from helpers import scaled, small_stream, weights_of


def interference_by_hand(model, x, y, old_x, old_y, lr):
    """Return how much the loss of each old example rises if a copy of the network is updated."""
    moved = copy.deepcopy(model)
    gradients = torch.autograd.grad(F.cross_entropy(moved(x), y), list(moved.parameters()))
    with torch.no_grad():
        for p, g in zip(moved.parameters(), gradients, strict=True):
            p -= lr * g
        pairs = zip(old_x, old_y, strict=True)
        return [
            float(F.cross_entropy(moved(a[None]), b[None]) - F.cross_entropy(model(a[None]), b[None])) for a, b in pairs
        ]


def test_the_examples_with_most_interference_are_replayed(
    stream, make_network, make_batch, make_learner, assert_sgd_step
):
    model = make_network()
    twin = copy.deepcopy(model)
    learner = make_learner(model, method=MIR(candidates=12), capacity=24, lr=0.4)
    split = stream.tasks[0].train
    learner.buffer.add({"x": split.x, "y": split.y})
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))[:12]  # what the learner will draw
    old_x, old_y = split.x[order], split.y[order]
    rises = interference_by_hand(twin, scaled(make_batch(1).x), make_batch(1).y, scaled(old_x), old_y, 0.4)
    chosen = sorted(range(12), key=lambda row: -rises[row])[:3]
    assert chosen != [0, 1, 2]
    loss, columns = MIR(candidates=12).step(learner, make_batch(1))
    x = scaled(torch.cat([make_batch(1).x, old_x[chosen]]))
    expected = F.cross_entropy(twin(x), torch.cat([make_batch(1).y, old_y[chosen]]))
    torch.testing.assert_close(loss, expected.detach())
    assert columns["logits"].shape == (4, 6)
    assert_sgd_step(model, twin, expected, lr=0.4)


def test_interference_equals_a_real_update_and_changes_nothing(stream, make_batch, make_learner, normed):
    model = normed
    model(torch.rand(8, 1, 2, 2))  # statistics that are not those of the start
    learner = make_learner(model, lr=0.3)
    before = copy.deepcopy(model.state_dict())
    x, y = scaled(make_batch(1).x), make_batch(1).y
    old = {"x": stream.tasks[0].train.x[:7], "y": stream.tasks[0].train.y[:7]}
    rises = interference(learner, x, y, old)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(
        rises,
        torch.tensor(interference_by_hand(copy.deepcopy(model).eval(), x, y, scaled(old["x"]), old["y"], 0.3)),
        rtol=1e-3,
        atol=1e-6,
    )


def test_a_small_buffer_is_replayed_completely(stream, make_network, make_batch, make_learner):
    models = [make_network(), make_network()]
    for model, method in zip(models, (MIR(), ER()), strict=True):
        learner = make_learner(model, method=method, capacity=3)
        learner.buffer.add({"x": stream.tasks[0].train.x[5:8], "y": stream.tasks[0].train.y[5:8]})
        method.step(learner, make_batch(1))
    for one, other in zip(*(weights_of(model) for model in models), strict=True):
        torch.testing.assert_close(one, other)


def test_flops_include_the_virtual_update_and_both_scores():
    stream = small_stream(tasks=2, per_class=24)  # 12 batches of 4 per task
    network = mlp(4, inputs=4, hidden=(8,))
    *_, end = train(stream, MIR(candidates=10), network, epochs=1, batch=4, replay=3, buffer=20)
    forward = 2 * (4 * 8 + 8 * 4)
    step = 2 * forward + 2 * 8 * 4  # the first layer has no gradient of its input
    expected = 0
    for number in range(24):
        held = min(4 * number, 20)
        scored = min(held, 10) if held > 3 else 0
        expected += (4 + min(held, 3)) * step + (4 * step + 2 * scored * forward if scored else 0)
    assert end.result.flops["train"] == expected


def test_candidates_must_cover_the_replay(make_network, make_learner):
    with pytest.raises(ValueError, match="candidates is 2; it must be 3 or more, the number of replayed examples"):
        make_learner(make_network(), method=MIR(candidates=2), capacity=24)
    found = preset("rot-mnist", "mir", "none", 500)
    assert found["candidates"] == (640, "five times the replay")
    assert found["replay"][0] == 128


def test_mir_is_about_as_accurate_as_er_on_digits(train_digits):
    # measured over seeds 1 to 9: mir 93.1 %, er 91.2 %
    assert accuracy(train_digits(MIR()).accuracy_matrix) > accuracy(train_digits(ER()).accuracy_matrix) - 2
