"""SCR: the contrastive loss, one step against plain torch, and the nearest class mean."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless.methods.learner import Batch
from forgetless.methods.scr import SCR, contrastive_loss
from forgetless.methods.sgd import SGD
from forgetless.repair.settings import Finetune
from forgetless.training.metrics import accuracy
from helpers import image_stream, narrow_resnet, run_small, scaled


def contrastive_loss_by_loops(z, y, temperature):
    losses = []
    for i in range(len(y)):
        total = sum(math.exp(float(z[i] @ z[a]) / temperature) for a in range(len(y)) if a != i)
        pairs = [p for p in range(len(y)) if p != i and y[p] == y[i]]
        shares = [math.exp(float(z[i] @ z[p]) / temperature) / total for p in pairs]
        losses.append(-sum(map(math.log, shares)) / len(pairs))
    return sum(losses) / len(losses)


def test_the_contrastive_loss_by_hand():
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    # each view: one positive at similarity 1 and two others at 0, so −log(e² / (e² + 2)) with τ = ½
    expected = math.log((math.exp(2) + 2) / math.exp(2))
    assert contrastive_loss(z, torch.tensor([3, 3, 5, 5]), 0.5).item() == pytest.approx(expected)
    # all of one class: −log ⅓ for the average of the positives, whatever the similarities are
    same = torch.tensor([[1.0, 0.0]] * 4)
    assert contrastive_loss(same, torch.zeros(4), 0.07).item() == pytest.approx(math.log(3))


def test_the_contrastive_loss_averages_over_all_positives():
    torch.manual_seed(0)
    z, y = F.normalize(torch.randn(9, 4)), torch.tensor([0, 1, 0, 2, 1, 2, 0, 0, 2])
    loss = contrastive_loss(z, y, 0.3)
    assert loss.item() == pytest.approx(contrastive_loss_by_loops(z, y.tolist(), 0.3), rel=1e-5)


def test_two_steps_equal_plain_torch(make_network, make_batch, make_learner, fill_buffer):
    model = make_network()
    twin = copy.deepcopy(model)
    method = SCR()
    learner = make_learner(model, method=method, capacity=3, weight_decay=0.01)
    old_x, old_y = fill_buffer(learner)
    weight, bias, last_weight, last_bias = method.head
    assert [tuple(tensor.shape) for tensor in method.head] == [(5, 5), (5,), (128, 5), (128,)]
    head = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 128))
    head.load_state_dict({"0.weight": weight, "0.bias": bias, "2.weight": last_weight, "2.bias": last_bias})
    optimizer = torch.optim.SGD([*twin.parameters(), *head.parameters()], lr=0.1, weight_decay=0.01)
    output_layer = twin.fc2.weight.detach().clone()
    for start in (0, 4):
        batch = make_batch(1, start=start)
        loss, columns = method.step(learner, batch)
        x, y = torch.cat([scaled(batch.x), old_x]), torch.cat([batch.y, old_y])
        z = F.normalize(head(twin.fc1(x.flatten(1)).relu()))
        z, y = torch.cat([z, z]), torch.cat([y, y])  # without augmentation the views are equal
        similar = torch.exp(z @ z.T / 0.07) * (1 - torch.eye(len(y)))
        same = (y[:, None] == y[None]).float() * (1 - torch.eye(len(y)))
        log_shares = (z @ z.T / 0.07) - similar.sum(1, keepdim=True).log()
        expected = -((same * log_shares).sum(1) / same.sum(1)).mean()
        optimizer.zero_grad()
        expected.backward()
        twin.fc2.weight.grad = torch.zeros_like(twin.fc2.weight)  # so that weight decay moves it
        twin.fc2.bias.grad = torch.zeros_like(twin.fc2.bias)
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        assert columns == {}
    for moved, other in zip([*model.parameters(), *method.head], [*twin.parameters(), *head.parameters()], strict=True):
        torch.testing.assert_close(moved.detach(), other.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.fc2.weight.detach(), output_layer * 0.999**2)


def test_one_view_is_plain_and_one_augmented(make_learner, monkeypatch):
    stream = image_stream()
    model = narrow_resnet(4, 3)
    learner = make_learner(model, stream, method=(method := SCR()), capacity=8)
    split, seen = stream.tasks[0].train, []
    features = model.features
    monkeypatch.setattr(model, "features", lambda x: seen.append(x) or features(x))
    method.step(learner, Batch(split.x[:6], split.y[:6], 0))
    plain = learner.plain(split.x[:6])
    assert seen[0].shape == (12, 3, 8, 8)
    assert torch.equal(seen[0][:6], plain)
    assert not torch.equal(seen[0][6:], plain)


def test_the_nearest_class_mean_predicts(stream, make_network, make_learner):
    model = make_network()
    learner = make_learner(model, method=(method := SCR()), capacity=24)
    x = scaled(stream.tasks[1].test.x)
    assert torch.equal(method.predict(learner, x), model(x))  # nothing is stored yet
    for task in stream.tasks[:2]:
        learner.buffer.add({"x": task.train.x[:12], "y": task.train.y[:12]})
    method.end_task(learner, stream.tasks[1], 1)

    def features(images):
        return F.normalize(model.fc1(scaled(images).flatten(1)).relu())

    stored = {c: features(learner.buffer["x"][learner.buffer["y"] == c]) for c in range(4)}
    means = torch.stack([F.normalize(rows.mean(0), dim=0) for rows in stored.values()])
    distances = (features(stream.tasks[1].test.x)[:, None] - means).norm(dim=2)
    with torch.no_grad():
        scores = method.predict(learner, x)
    torch.testing.assert_close(scores[:, :4], -distances.detach(), rtol=1e-3, atol=1e-3)
    assert scores[:, :4].argmax(1).tolist() == distances.argmin(1).tolist()
    assert bool((scores[:, 4:] == -torch.inf).all())  # classes without stored examples
    learner.finetuned = True
    assert torch.equal(method.predict(learner, x), model(x))


@pytest.mark.parametrize("finetune", [Finetune(steps=3, batch=6), Finetune.k_fpf(5, steps=3, batch=6)])
def test_fpf_and_k_fpf_finetune_around_it(finetune):
    result = run_small(SCR(), finetune=finetune)[1]
    assert result.finetunings
    assert result.flops["finetune"] > 0


def test_flops_are_those_of_both_views():
    result = run_small(SCR(), epochs=1, replay=6, buffer=36)[1]
    examples, full = 180, 30 * 6 - 6  # 30 steps of 6, of which the first replays nothing
    views = 2 * (examples + full)
    layer, head = 2 * 4 * 16, 2 * (16 * 16 + 16 * 128)
    pairs = sum(2 * (2 * size) ** 2 * 128 for size in [6] + [12] * 29)
    # forward and backward; the first layer has no gradient of its input
    assert result.flops["train"] == views * (2 * layer + 3 * head) + 3 * pairs
    assert result.flops["memory"] == 3 * 36 * (layer + 2 * 16 * 6)


def test_networks_without_features_are_refused(make_learner):
    with pytest.raises(ValueError, match=r"scr needs a network with features\(x\); Sequential has none"):
        make_learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), method=SCR(), capacity=8)


def test_scr_keeps_what_sgd_forgets(train_digits):
    # measured over seeds 1 to 3: scr 92.4 to 93.0 %
    assert accuracy(train_digits(SGD()).accuracy_matrix) < 40
    assert accuracy(train_digits(SCR()).accuracy_matrix) > 85
