"""HAT: gates, masks, compensation and the networks it refuses."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import networks
from forgetless.data.builders import split_by_class
from forgetless.data.stream import Split
from forgetless.methods.hat import HAT, compensated, sparsity, steepness
from forgetless.methods.learner import Batch
from forgetless.repair.settings import Finetune
from forgetless.training.metrics import accuracy
from helpers import all_equal, scaled, weights_of


def test_steepness_rises_within_each_epoch():
    found = [float(steepness(torch.tensor(place), 5, 400.0)) for place in range(10)]
    expected = [1 / 400 + (400 - 1 / 400) * b / 4 for b in range(5)]
    assert found == pytest.approx(expected * 2, rel=1e-5)
    assert float(steepness(torch.tensor(3), 1, 400.0)) == pytest.approx(400.0)


def test_gates_multiply_units_and_leave_no_hooks(stream, make_network, make_learner, train_task):
    model = make_network(hidden=(5, 4))
    method = HAT(s_max=3.0)
    learner = make_learner(model, method=method)
    train_task(method, learner, 0, steps=3)
    train_task(method, learner, 1, steps=3)
    x = scaled(stream.tasks[0].test.x)
    for task, used in ((0, 0), (1, 1), (2, 1)):  # the last one was not trained: the latest gates
        h = x.flatten(1)
        for layer, table in zip((model.fc1, model.fc2), method.embeddings, strict=True):
            h = (h @ layer.weight.T + layer.bias).relu() * (1 / (1 + torch.exp(-3.0 * table[used])))
        expected = h @ model.fc3.weight.T + model.fc3.bias
        torch.testing.assert_close(method.predict_task(learner, x, task), expected)
    torch.testing.assert_close(method.predict(learner, x), expected)
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(RuntimeError):
        method.predict(learner, x[:, :, :1])  # half of the inputs
    assert not any(module._forward_hooks for module in model.modules())
    learner.finetuned = True
    assert torch.equal(method.predict_task(learner, x, 0), model(x))


def test_the_regulariser_counts_free_units():
    gates = [torch.tensor([0.5, 1.0]), torch.tensor([0.25])]
    assert float(sparsity(gates, [torch.zeros(2), torch.zeros(1)])) == pytest.approx(1.75 / 3)
    # (0.5 · 0.9 + 1 · 0 + 0.25 · 0.6) / (0.9 + 0 + 0.6)
    assert float(sparsity(gates, [torch.tensor([0.1, 1.0]), torch.tensor([0.4])])) == pytest.approx(0.6 / 1.5)
    assert float(sparsity(gates, [torch.ones(2), torch.ones(1)])) == 0.0


def test_compensation_removes_the_steepness_from_gradients():
    e = torch.tensor([-1.0, 0.0, 0.3, 2.0], dtype=torch.float64)
    for s in (0.01, 1.0, 20.0):
        gate = torch.sigmoid(s * e)
        steep = s * gate * torch.sigmoid(-s * e)
        flat = torch.sigmoid(e) * (1 - torch.sigmoid(e))
        torch.testing.assert_close(compensated(steep, e, torch.tensor(s), 400.0), 400.0 * flat, rtol=1e-5, atol=1e-9)


def test_a_step_masks_gradients_of_used_units(make_network, make_batch, make_learner, train_task):
    model = make_network(hidden=(5, 4))
    method = HAT(s_max=4.0, c=0.6)
    learner = make_learner(model, method=method, weight_decay=0.05)
    train_task(method, learner, 0, steps=6)
    used = [torch.sigmoid(4.0 * table[0]) for table in method.embeddings]
    assert all_equal(method.used, used)
    method.step(learner, make_batch(1))  # so that what follows is the second of the six batches of an epoch
    twin, tables = copy.deepcopy(model), [table.clone() for table in method.embeddings]
    s = 1 / 4 + (4 - 1 / 4) * 1 / 5
    rows = [table[1].clone().requires_grad_() for table in tables]
    gates = [1 / (1 + torch.exp(-s * row)) for row in rows]
    h = scaled(make_batch(1).x).flatten(1)
    for layer, gate in zip((twin.fc1, twin.fc2), gates, strict=True):
        h = (h @ layer.weight.T + layer.bias).relu() * gate
    logits = h @ twin.fc3.weight.T + twin.fc3.bias
    left = [1 - a for a in used]
    regulariser = sum((g * f).sum() for g, f in zip(gates, left, strict=True)) / sum(f.sum() for f in left)
    expected = F.cross_entropy(logits[:, 2:4], make_batch(1).y - 2) + 0.6 * regulariser
    loss, columns = method.step(learner, make_batch(1))
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(columns["logits"], logits.detach())

    named = dict(twin.named_parameters())
    found = torch.autograd.grad(expected, [*named.values(), *rows])
    masks = {name: torch.ones_like(p) for name, p in named.items()}
    for i in range(5):
        masks["fc1.weight"][i] = 1 - used[0][i]
        masks["fc1.bias"][i] = 1 - used[0][i]
    for i in range(4):
        masks["fc2.bias"][i] = 1 - used[1][i]
        for j in range(5):
            masks["fc2.weight"][i, j] = 1 - min(used[1][i], used[0][j])
    for name in ("fc3.weight", "fc3.bias"):
        masks[name][[0, 1, 4, 5]] = 0.0  # heads of other tasks
    for (name, start), gradient in zip(named.items(), found, strict=False):
        moved = start.detach() - 0.1 * masks[name] * (gradient + 0.05 * start.detach())
        torch.testing.assert_close(model.get_parameter(name).detach(), moved, rtol=1e-4, atol=1e-6)
    for table, before, row, q in zip(method.embeddings, tables, rows, found[len(named) :], strict=True):
        e = row.detach()
        q = q * 4.0 / s * (torch.cosh(s * e) + 1) / (torch.cosh(e) + 1)
        torch.testing.assert_close(table[1], (e - 0.1 * q).clamp(-6, 6), rtol=1e-4, atol=1e-6)
        assert torch.equal(table[[0, 2]], before[[0, 2]])


def test_fully_used_units_keep_their_predictions(stream, make_network, make_learner, train_task):
    model = make_network()
    method = HAT()
    learner = make_learner(model, method=method)
    with torch.no_grad():
        method.embeddings[0][0] = torch.tensor([6.0, 6.0, -6.0, -6.0, -6.0])  # gates of exactly 1 and nearly 0
    method.end_task(learner, stream.tasks[0], 0)
    x = scaled(stream.tasks[0].test.x)
    before = method.predict_task(learner, x, 0)[:, :2].detach()
    start = weights_of(model)
    train_task(method, learner, 1)
    assert torch.equal(model.fc1.weight[:2], start[0][:2])
    assert not torch.equal(model.fc1.weight[2:], start[0][2:])
    assert torch.equal(method.predict_task(learner, x, 0)[:, :2], before)


def test_convolutions_are_gated_by_channel(stream, make_learner, train_task):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 6))
    method = HAT(s_max=2.0)
    learner = make_learner(model, method=method)
    train_task(method, learner, 0, steps=2)
    a, b = method.used
    x = scaled(stream.tasks[0].test.x)
    h = model[0](x).relu() * a[None, :, None, None]
    h = model[2](h).relu() * b[None, :, None, None]
    torch.testing.assert_close(method.predict_task(learner, x, 0), model[5](h.flatten(1)))
    masks = dict(zip(dict(model.named_parameters()), method.masks, strict=True))
    torch.testing.assert_close(masks["0.weight"][:, 0, 0, 0], 1 - a)
    torch.testing.assert_close(masks["2.weight"][:, :, 0, 0], 1 - torch.minimum(b[:, None], a[None]))

    flat = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2), nn.ReLU(), nn.Linear(2, 6))
    method = HAT(s_max=2.0)
    train_task(method, make_learner(flat, method=method), 0, steps=2)
    mask = dict(zip(dict(flat.named_parameters()), method.masks, strict=True))["3.weight"]
    expected = [[1 - min(float(i), float(method.used[0][j // 4])) for j in range(12)] for i in method.used[1]]
    torch.testing.assert_close(mask, torch.tensor(expected))


def test_hat_trains_vgg11(make_learner):
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1, 0, 1])
    x = torch.randint(256, (8, 3, 32, 32), generator=generator).to(torch.uint8)
    images = split_by_class("images", Split(x, torch.cat([y, y + 2])), Split(x, torch.cat([y, y + 2])), [2, 2])
    method = HAT()
    learner = make_learner(networks.vgg11(4), images, method=method)
    assert len(method.hidden) == 10
    assert method.hidden[:2] == ["conv1", "block2.0"]
    loss, _ = method.step(learner, Batch(x[:4], y, 0))
    assert bool(loss.isfinite())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: networks.resnet18(6, channels=1, width=4),
            "hat cannot train ResNet: if all units of block1.0.conv2 are 0, block1.1.conv1 still sees other values",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 6)),
            "if all units of 1 are 0, 3 still sees other values",
        ),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), "Sequential has none"),
    ],
)
def test_networks_whose_gates_would_leak_are_refused(make, match, make_learner):
    with pytest.raises(ValueError, match=match):
        make_learner(make(), method=HAT())


def test_normalisation_is_refused(make_learner, normed):
    with pytest.raises(ValueError, match="hat cannot train Normed: bn normalises, which cancels the gates before it"):
        make_learner(normed, method=HAT())


def test_after_fpf_the_network_predicts_without_gates(train_digits):
    result = train_digits(HAT(), finetune=Finetune(lr=0.1))
    assert sum(result.before_finetuning) / 5 < 50
    assert accuracy(result.accuracy_matrix) > 70
