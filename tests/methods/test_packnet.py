"""PackNet: pruning, ownership of weights, retraining and prediction per task."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import networks
from forgetless.data.benchmarks import seq_digits
from forgetless.data.builders import from_tensors
from forgetless.methods.learner import evaluating
from forgetless.methods.packnet import FREE, PackNet, prune
from forgetless.networks.seed import with_seed
from forgetless.training.loop import train
from helpers import all_equal, scaled


def test_pruning_keeps_the_largest_free_weights():
    weight = torch.tensor([[5.0, -4.0, 0.5], [-3.0, 0.1, 2.0]])
    owner = torch.tensor([[0, FREE, FREE], [FREE, FREE, FREE]], dtype=torch.int16)
    now = prune(weight, owner, 1, 0.4)  # two of five free weights
    assert now.tolist() == [[0, 1, FREE], [1, FREE, FREE]]
    assert weight.tolist() == [[5.0, -4.0, 0.0], [-3.0, 0.0, 0.0]]
    last = prune(weight, now, 2, 1.0)
    assert last.tolist() == [[0, 1, 2], [1, 2, 2]]
    assert torch.equal(prune(weight, last, 3, 1.0), last)  # none left


def test_packnet_trains_a_network_of_tokens():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.hidden, self.fc = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.fc(self.hidden(self.embedding(x).mean(1)).relu())

    tokens = torch.randint(50, (80, 6), generator=torch.Generator().manual_seed(0))
    stream = from_tensors(tokens, torch.arange(80) % 4, [2, 2])
    method = PackNet()
    *_, end = train(stream, method, with_seed(Bag, 0), batch=10, lr=0.1)
    assert method.hidden == ["hidden"]
    assert len(end.result.accuracy_matrix) == 2


def test_owned_weights_never_move(stream, make_network, make_batch, make_learner):
    model = make_network(hidden=(6, 5))
    method = PackNet(retrain_epochs=2)
    learner = make_learner(model, method=method, weight_decay=0.01, lr=0.5)
    assert (method.hidden, method.output) == (["fc1", "fc2"], "fc3")
    x = scaled(torch.cat([task.test.x for task in stream.tasks]))
    owned, scores = {}, {}
    for task in range(3):
        for step in range(6):
            method.step(learner, make_batch(task, start=4 * step))
        by_size = [layer.weight.detach().abs().clone() for layer in (model.fc1, model.fc2)]
        free = [owner == FREE for owner in method.owner]
        method.end_task(learner, stream.tasks[task], task)
        for owner, size, was_free, layer in zip(method.owner, by_size, free, (model.fc1, model.fc2), strict=True):
            mask = owner == task
            assert int(mask.sum()) == owner.numel() // 3  # 8 of 24, 10 of 30
            assert bool(was_free[mask].all())
            if task < 2:
                assert size[mask].min() >= size[owner == FREE].max()
                assert not bool(layer.weight[owner == FREE].any())
        with torch.no_grad():
            scores[task] = method.predict_task(learner, x, task)
        owned[task] = [
            layer.weight[o == task].detach().clone()
            for layer, o in zip((model.fc1, model.fc2), method.owner, strict=True)
        ]
        owned[task].append(model.fc3.weight[2 * task : 2 * task + 2].detach().clone())
        owned[task].append(torch.cat([model.fc1.bias, model.fc2.bias, model.fc3.bias[: 2 * task + 2]]).detach().clone())
        assert torch.equal(scores[task], model(x))  # the latest masks: the network as it is
        for earlier in range(task):
            with torch.no_grad():
                again = method.predict_task(learner, x, earlier)
            rows = slice(2 * earlier, 2 * earlier + 2)
            assert torch.equal(again[:, rows], scores[earlier][:, rows])
            assert not torch.equal(model(x)[:, rows], scores[earlier][:, rows])
    layers = (model.fc1, model.fc2)
    for task in range(3):
        now = [layer.weight[o == task].detach() for layer, o in zip(layers, method.owner, strict=True)]
        now.append(model.fc3.weight[2 * task : 2 * task + 2].detach())
        now.append(torch.cat([model.fc1.bias, model.fc2.bias, model.fc3.bias[: 2 * task + 2]]).detach())
        assert all_equal(now, owned[task]), task


def test_a_task_uses_only_weights_owned_until_then(stream, make_network, make_learner, train_task):
    model = make_network(hidden=(6,))
    method = PackNet(keep=0.5, retrain_epochs=0)
    learner = make_learner(model, method=method)
    for task in range(3):
        train_task(method, learner, task)
    assert [int((method.owner[0] == task).sum()) for task in (0, 1, 2, FREE)] == [12, 6, 3, 3]
    x = scaled(stream.tasks[0].test.x)
    hidden = x.flatten(1) @ (model.fc1.weight * (method.owner[0] <= 1)).T + model.fc1.bias
    expected = hidden.relu() @ model.fc2.weight.T + model.fc2.bias
    torch.testing.assert_close(method.predict_task(learner, x, 1), expected)
    learner.finetuned = True
    assert torch.equal(method.predict_task(learner, x, 1), model(x))


def test_a_step_moves_only_free_weights(make_network, make_batch, make_learner, train_task):
    model = make_network()
    method = PackNet()
    learner = make_learner(model, method=method)
    train_task(method, learner, 0)
    twin = copy.deepcopy(model)
    loss, _ = method.step(learner, make_batch(1))
    entropy = F.cross_entropy(twin(scaled(make_batch(1).x))[:, 2:4], make_batch(1).y - 2)
    torch.testing.assert_close(loss, entropy.detach())
    g = dict(zip(("w1", "b1", "w2", "b2"), torch.autograd.grad(entropy, list(twin.parameters())), strict=True))
    free = method.owner[0] == FREE
    torch.testing.assert_close(model.fc1.weight.detach(), twin.fc1.weight.detach() - 0.1 * g["w1"] * free)
    assert torch.equal(model.fc1.bias, twin.fc1.bias)
    torch.testing.assert_close(model.fc2.weight.detach(), twin.fc2.weight.detach() - 0.1 * g["w2"])
    assert not bool(g["w2"][[0, 1, 4, 5]].any())
    assert bool(g["w2"][2:4].any())


def test_retraining_moves_only_kept_weights(stream, make_network, make_learner):
    model = make_network()
    method = PackNet(keep=0.25, retrain_epochs=3)
    learner = make_learner(model, method=method)
    method.end_task(learner, stream.tasks[0], 0)
    before = make_network()
    kept = method.owner[0] == 0
    assert int(kept.sum()) == 5
    assert bool((model.fc1.weight[kept] != before.fc1.weight[kept]).any())
    assert not bool(model.fc1.weight[~kept].any())
    assert learner.flops["consolidate"] == 3 * 24 * (2 * 2 * (4 * 5 + 5 * 6) + 2 * 5 * 6)


def test_every_task_has_its_own_normalisation(stream, make_learner, train_task, normed):
    model = normed
    method = PackNet()
    learner = make_learner(model, method=method)
    x = scaled(stream.tasks[0].test.x)

    def scores(method, learner):
        with evaluating(learner.network), torch.no_grad():
            return method.predict_task(learner, x, 0)[:, :2]

    train_task(method, learner, 0)
    first = {name: tensor.clone() for name, tensor in model.bn.state_dict().items()}
    before = scores(method, learner)
    train_task(method, learner, 1)
    assert not any(torch.equal(tensor, first[name]) for name, tensor in model.bn.state_dict().items())
    assert all(torch.equal(method.norms[0][f"bn.{name}"], first[name]) for name in ("weight", "running_var"))
    torch.testing.assert_close(scores(method, learner), before)
    other = PackNet()
    resumed = make_learner(copy.deepcopy(model).train(), method=other)
    other.load_state_dict(resumed, method.state_dict(learner))
    assert all_equal(other.masks, method.masks)
    assert torch.equal(scores(other, resumed), scores(method, learner))


def test_packnet_trains_batch_norm_from_scratch():
    network = with_seed(lambda: networks.resnet18(10, channels=1, width=4), 0)
    stream = seq_digits()
    three_tasks = dataclasses.replace(stream, tasks=stream.tasks[:3])
    *_, last = train(three_tasks, PackNet(), network, epochs=1, batch=10, lr=0.1)
    *others, _ = last.result.task_il_matrix[-1]  # one epoch is short for the few weights of the last task
    assert min(others) > 95


def test_a_network_needs_one_output_per_class(make_learner):
    with pytest.raises(ValueError, match="Sequential does not end with a Linear or Conv2d layer of 6 outputs"):
        make_learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), method=PackNet())
