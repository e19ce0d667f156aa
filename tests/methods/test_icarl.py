"""iCaRL: distillation, herding, prediction by means, and what it needs."""

import copy
import dataclasses

import numpy
import pytest
import torch
from torch import nn

from forgetless import networks
from forgetless.data.stream import Split, Task
from forgetless.methods.icarl import ICaRL
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.training.loop import train
from helpers import scaled, small_stream


def test_icarl_learns_new_classes_and_distils_the_old(stream, make_network, make_batch, make_learner, assert_sgd_step):
    model = make_network()
    learner = make_learner(model, capacity=12, replay=4)
    method = ICaRL()
    method.end_task(learner, stream.tasks[0], 0)
    former = copy.deepcopy(model)
    with torch.no_grad():
        model.fc2.bias.add_(0.3)
    twin = copy.deepcopy(model)
    held_x, held_y = learner.buffer["x"].clone(), learner.buffer["y"].clone()
    learner.replay_size = len(held_y)
    order = torch.randperm(len(held_y), generator=torch.Generator().manual_seed(0))
    loss, _ = method.step(learner, make_batch(1))
    x = torch.cat([scaled(make_batch(1).x), scaled(held_x[order])])
    y = torch.cat([make_batch(1).y, held_y[order]])
    targets = torch.zeros(len(y), 4)
    targets[:, :2] = former(x).detach().sigmoid()[:, :2]
    for row, label in enumerate(y.tolist()):
        if label >= 2:
            targets[row, label] = 1.0
    probabilities = twin(x)[:, :4].sigmoid()
    expected = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).mean()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
    assert_sgd_step(model, twin, expected)


def test_icarl_herds_exemplars_and_predicts_the_nearest_mean(stream, make_network, make_learner):
    model = make_network()
    learner = make_learner(model, capacity=12)
    method = ICaRL()

    def features(x):
        found = scaled(x).flatten(1).numpy() @ model.fc1.weight.detach().numpy().T + model.fc1.bias.detach().numpy()
        found = numpy.maximum(found, 0)
        return found / numpy.maximum(numpy.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    kept = []
    for number in (0, 1):
        method.end_task(learner, stream.tasks[number], number)
        share = 12 // (2 * (number + 1))
        kept = [rows[:share] for rows in kept]
        for c in stream.tasks[number].classes:
            rows = stream.tasks[number].train.x[stream.tasks[number].train.y == c]
            phi, picks = features(rows), []
            for k in range(1, share + 1):
                rest = [i for i in range(len(rows)) if i not in picks]
                distance = [numpy.linalg.norm(phi.mean(0) - phi[[*picks, i]].sum(0) / k) for i in rest]
                picks.append(rest[int(numpy.argmin(distance))])
            kept.append(rows[picks])
    assert learner.buffer["y"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert torch.equal(learner.buffer["x"], torch.cat(kept))

    means = numpy.stack([features(rows).mean(0) for rows in kept])
    means /= numpy.linalg.norm(means, axis=1, keepdims=True)
    x = stream.tasks[1].test.x
    expected = ((features(x)[:, None] - means[None]) ** 2).sum(2).argmin(1)
    model.eval()
    with torch.no_grad():
        scores = method.predict(learner, scaled(x))
    assert scores.argmax(1).tolist() == expected.tolist()
    many = method.predict(
        learner, scaled(x).repeat(20, 1, 1, 1)
    )  # for which cdist goes another way, where ∞ - ∞ is NaN
    assert torch.allclose(many[: len(x), :4], scores[:, :4], atol=1e-3)
    for found in (scores, many):
        assert bool((found[:, 4:] == -torch.inf).all())  # classes without exemplars


def test_the_output_layer_predicts_after_a_finetune(stream, make_network, make_learner):
    model = make_network()
    learner = make_learner(model, capacity=12)
    method = ICaRL()
    method.end_task(learner, stream.tasks[0], 0)
    learner.finetuned = True
    x = scaled(stream.tasks[0].test.x)
    assert torch.equal(method.predict(learner, x), model(x))


def test_unsuitable_buffers_networks_and_streams_are_refused(stream, make_network, make_learner):
    with pytest.raises(ValueError, match="buffer is 5; with 6 classes icarl needs 6 or more"):
        ICaRL().begin(make_learner(make_network(), capacity=5))
    with pytest.raises(ValueError, match="icarl needs a network with features"):
        ICaRL().begin(make_learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), capacity=8))
    other = dataclasses.replace(stream, tasks=stream.tasks[::-1])
    with pytest.raises(ValueError, match=r"classes numbered in the order of the tasks.* are \[4, 5, 2, 3, 0, 1\]"):
        ICaRL().begin(make_learner(make_network(), other, capacity=8))
    first, second, third = stream.tasks
    joined = [
        Split(torch.cat([a.x, b.x]), torch.cat([a.y, b.y]))
        for a, b in ((first.train, third.train), (first.test, third.test))
    ]
    again = dataclasses.replace(stream, tasks=(first, second, Task(*joined, (0, 1, 4, 5))))
    with pytest.raises(ValueError, match=r"needs every class in one task only.* are \[0, 1, 2, 3, 0, 1, 4, 5\]"):
        ICaRL().begin(make_learner(make_network(), again, capacity=8))


def test_the_former_network_is_in_evaluation_mode(stream, make_learner):
    model = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    learner = make_learner(model, capacity=12)
    method = ICaRL()
    method.end_task(learner, stream.tasks[0], 0)
    assert model.training
    assert not any(module.training for module in method.former.modules())
    again = ICaRL()
    again.load_state_dict(learner, method.state_dict(learner))
    assert not any(module.training for module in again.former.modules())


def test_a_second_run_forgets_the_first_network():
    used, counted = ICaRL(), []
    for size, method in ((4, used), (6, used), (6, ICaRL())):
        model = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
        run = train(small_stream(), method, model, batch=size, lr=0.1, buffer=12)
        *_, end = run
        counted.append(end.result.flops["train"])
    assert counted[1] == counted[2]
