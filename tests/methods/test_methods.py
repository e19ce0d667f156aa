"""One step or one selection of each method, against numbers computed here in another way."""

import copy
import dataclasses

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from forgetless import networks
from forgetless.compute import flops
from forgetless.config import catalogue
from forgetless.data.stream import Split, Task
from forgetless.methods import setting
from forgetless.methods.agem import AGEM, project
from forgetless.methods.der import DER
from forgetless.methods.derpp import DERpp
from forgetless.methods.er import ER
from forgetless.methods.fdr import FDR
from forgetless.methods.gdumb import GDumb, cut_and_mix, learning_rate
from forgetless.methods.icarl import ICaRL
from forgetless.methods.joint import Joint
from forgetless.methods.learner import Batch
from forgetless.methods.masked import Masked
from forgetless.methods.oewc import OnlineEWC, fisher_information
from forgetless.methods.sgd import SGD
from forgetless.networks import mlp
from forgetless.networks.seed import with_seed
from forgetless.repair.settings import Finetune
from forgetless.training.events import Ended, Trained
from forgetless.training.loop import train
from helpers import learner, small_stream

STREAM = small_stream()


def network(seed=0, hidden=(5,)):
    torch.manual_seed(seed)
    return mlp(6, inputs=4, hidden=hidden)


def batch(task=0, size=4):
    split = STREAM.tasks[task].train
    return Batch(split.x[:size], split.y[:size], task)


def inputs(x):
    return x.float() / 255


def filled(method_learner, **columns):
    split = STREAM.tasks[0].train
    method_learner.buffer.add({"x": split.x[5:8], "y": split.y[5:8], **columns})
    return inputs(split.x[5:8]), split.y[5:8]


def assert_stepped(model, twin, loss, lr=0.1):
    """``model`` is where one step of SGD along the gradient of ``loss`` takes ``twin``."""
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for moved, start, gradient in zip(model.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(moved.detach(), start.detach() - lr * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [SGD, Joint])
def test_sgd_steps_along_the_cross_entropy(kind):
    model = network()
    twin = copy.deepcopy(model)
    loss, columns = kind().step(learner(model, STREAM), batch())
    expected = F.cross_entropy(twin(inputs(batch().x)), batch().y)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(columns["logits"], twin(inputs(batch().x)).detach())
    assert_stepped(model, twin, expected)


def test_masked_compares_the_classes_of_the_task_alone():
    model = network()
    twin = copy.deepcopy(model)
    loss, columns = Masked().step(learner(model, STREAM), batch(1))
    logits = twin(inputs(batch(1).x))
    expected = F.cross_entropy(logits[:, 2:4], batch(1).y - 2)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(columns["logits"], logits.detach())  # all of them: k-FPF stores what the network says
    assert_stepped(model, twin, expected)
    for row in (0, 1, 4, 5):
        assert torch.equal(model.fc2.weight[row], twin.fc2.weight[row])


def test_masked_is_sgd_where_all_tasks_have_the_same_classes():
    stream = small_stream(scenario="domain")
    split = stream.tasks[1].train
    one, other = network(), network()
    for kind, model in ((SGD, one), (Masked, other)):
        kind().step(learner(model, stream), Batch(split.x[:4], split.y[:4], 1))
    assert not torch.equal(one.fc1.weight, network().fc1.weight)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_er_averages_over_the_batch_and_the_replayed_examples():
    model = network()
    twin = copy.deepcopy(model)
    mine = learner(model, STREAM, capacity=3)
    x, y = filled(mine)  # three examples, and three are drawn: all of them
    loss, columns = ER().step(mine, batch())
    rows = torch.cat([inputs(batch().x), x])
    expected = F.cross_entropy(twin(rows), torch.cat([batch().y, y]))
    torch.testing.assert_close(loss, expected.detach())
    assert columns["logits"].shape == (4, 6)
    assert_stepped(model, twin, expected)


def test_der_adds_the_distance_to_the_stored_logits():
    model = network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    mine = learner(model, STREAM, capacity=3)
    x, _ = filled(mine, logits=stored)
    loss, _ = DER(alpha=0.7).step(mine, batch())
    expected = F.cross_entropy(twin(inputs(batch().x)), batch().y) + 0.7 * ((twin(x) - stored) ** 2).mean()
    torch.testing.assert_close(loss, expected.detach())
    assert_stepped(model, twin, expected)


def test_derpp_adds_the_labels_too():
    model = network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    mine = learner(model, STREAM, capacity=3)
    x, y = filled(mine, logits=stored)
    loss, _ = DERpp(alpha=0.7, beta=0.4).step(mine, batch())
    expected = (
        F.cross_entropy(twin(inputs(batch().x)), batch().y)
        + 0.7 * ((twin(x) - stored) ** 2).mean()
        + 0.4 * F.cross_entropy(twin(x), y)
    )
    torch.testing.assert_close(loss, expected.detach())
    assert_stepped(model, twin, expected)


def test_derpp_draws_twice_independently():
    mine = learner(network(), STREAM, capacity=24)
    split = STREAM.tasks[0].train
    mine.buffer.add({"x": split.x, "y": split.y, "logits": torch.zeros(24, 6)})
    drawn = []
    draw = mine.buffer.draw
    mine.buffer.draw = lambda size, generator: drawn.append(draw(size, generator)) or drawn[-1]
    DERpp().step(mine, batch())
    assert len(drawn) == 2
    assert [len(rows["y"]) for rows in drawn] == [3, 3]
    assert not torch.equal(drawn[0]["x"], drawn[1]["x"])


# ---- oEWC


def test_the_fisher_information_is_the_mean_of_squared_gradients_weighted_by_probability():
    model = network()
    mine = learner(model, STREAM)
    total = [numpy.zeros(tuple(p.shape)) for p in model.parameters()]
    for x, y in zip(STREAM.tasks[0].train.x, STREAM.tasks[0].train.y, strict=True):
        log_p = F.log_softmax(model(inputs(x)[None]), 1)[0, y]
        for sum_, gradient in zip(total, torch.autograd.grad(log_p, list(model.parameters())), strict=True):
            sum_ += log_p.exp().item() * gradient.numpy() ** 2
    for fisher, expected in zip(
        fisher_information(mine, STREAM.tasks[0], len(STREAM.tasks[0].train)), total, strict=True
    ):
        torch.testing.assert_close(fisher, torch.tensor(expected / 24, dtype=torch.float32), rtol=1e-3, atol=1e-7)


def test_the_fisher_information_can_be_taken_over_some_examples_spread_over_the_task():
    mine, split = learner(network(), STREAM), STREAM.tasks[0].train
    few = Split(split.x[::4].contiguous(), split.y[::4].contiguous())
    expected = fisher_information(mine, Task(few, few, (0, 1)), 6)
    method = OnlineEWC(fisher_examples=6)
    method.end_task(mine, STREAM.tasks[0], 0)
    for fisher, value in zip(method.fisher, expected, strict=True):
        torch.testing.assert_close(fisher, value)


def test_oewc_penalises_the_squared_distance_without_a_half():
    model = network()
    mine = learner(model, STREAM)
    method = OnlineEWC(penalty=3.0, gamma=0.5)
    method.end_task(mine, STREAM.tasks[0], 0)
    first = [value.clone() for value in method.fisher]
    anchor = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    twin = copy.deepcopy(model)
    loss, _ = method.step(mine, batch(1))
    expected = F.cross_entropy(twin(inputs(batch(1).x)), batch(1).y)
    for p, fisher, star in zip(twin.parameters(), first, anchor, strict=True):
        expected = expected + 3.0 * (fisher * (p - star) ** 2).sum()
    torch.testing.assert_close(loss, expected.detach())
    assert_stepped(model, twin, expected)
    fresh = fisher_information(mine, STREAM.tasks[1], len(STREAM.tasks[1].train))
    method.end_task(mine, STREAM.tasks[1], 1)
    for now, before, new in zip(method.fisher, first, fresh, strict=True):
        torch.testing.assert_close(now, 0.5 * before + new)


# ---- A-GEM


def test_a_gradient_that_points_against_the_reference_is_projected():
    # g·r = 1·(−2) + 2·0 = −2, r·r = 4: g + ½ r = (0, 2)
    assert [g.tolist() for g in project([torch.tensor([1.0, 2.0])], [torch.tensor([-2.0, 0.0])])] == [[0.0, 2.0]]
    assert [g.tolist() for g in project([torch.tensor([1.0, 2.0])], [torch.tensor([2.0, 0.0])])] == [[1.0, 2.0]]
    assert [g.tolist() for g in project([torch.tensor([1.0])], [torch.tensor([0.0])])] == [[1.0]]


def test_the_projection_is_over_all_parameters_together():
    gradients = [torch.tensor([3.0]), torch.tensor([-1.0])]
    reference = [torch.tensor([1.0]), torch.tensor([4.0])]  # g·r = −1, r·r = 17
    projected = torch.cat(project(gradients, reference))
    torch.testing.assert_close(projected, torch.tensor([3.0 + 1 / 17, -1.0 + 4 / 17]))
    assert torch.dot(projected, torch.cat(reference)).abs() < 1e-6


def test_agem_steps_along_the_projected_gradient():
    model = network()
    twin = copy.deepcopy(model)
    mine = learner(model, STREAM, capacity=3)
    x, y = filled(mine)
    AGEM().step(mine, batch(1))
    parameters = list(twin.parameters())
    g = torch.autograd.grad(F.cross_entropy(twin(inputs(batch(1).x)), batch(1).y), parameters)
    r = torch.autograd.grad(F.cross_entropy(twin(x), y), parameters)
    flat_g, flat_r = (numpy.concatenate([part.numpy().ravel() for part in parts]) for parts in (g, r))
    dot = flat_g @ flat_r
    expected = flat_g - (dot / (flat_r @ flat_r)) * flat_r if dot < 0 else flat_g
    moved = numpy.concatenate([
        ((start - now) / 0.1).detach().numpy().ravel()
        for start, now in zip(parameters, model.parameters(), strict=True)
    ])  # fmt: skip
    numpy.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-5)


def test_agem_refuses_a_buffer_with_too_little_for_each_task():
    with pytest.raises(ValueError, match="buffer is 2; agem .* with 3 tasks it must be 3 or more"):
        AGEM().begin(learner(network(), STREAM, capacity=2))
    batch_norm = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    with pytest.raises(ValueError, match="needs 2 or more at a time, so with 3 tasks it must be 6 or more"):
        AGEM().begin(learner(batch_norm, STREAM, capacity=5))


def test_agem_keeps_an_equal_share_of_every_task():
    mine = learner(network(), STREAM, capacity=9)
    for number, task in enumerate(STREAM.tasks):
        AGEM().end_task(mine, task, number)
        assert len(mine.buffer) == 3 * (number + 1)
    assert (mine.buffer["y"] // 2).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


# ---- iCaRL


def test_icarl_learns_new_classes_and_distils_the_old():
    model = network()
    mine = learner(model, STREAM, capacity=12, replay=4)
    method = ICaRL()
    method.end_task(mine, STREAM.tasks[0], 0)
    former = copy.deepcopy(model)
    with torch.no_grad():
        model.fc2.bias.add_(0.3)
    twin = copy.deepcopy(model)
    held_x, held_y = mine.buffer["x"].clone(), mine.buffer["y"].clone()
    mine.replay_size = len(held_y)
    order = torch.randperm(len(held_y), generator=torch.Generator().manual_seed(0))
    loss, _ = method.step(mine, batch(1))
    x = torch.cat([inputs(batch(1).x), inputs(held_x[order])])
    y = torch.cat([batch(1).y, held_y[order]])
    targets = torch.zeros(len(y), 4)
    targets[:, :2] = former(x).detach().sigmoid()[:, :2]
    for row, label in enumerate(y.tolist()):
        if label >= 2:
            targets[row, label] = 1.0
    probabilities = twin(x)[:, :4].sigmoid()
    expected = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).mean()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
    assert_stepped(model, twin, expected)


def test_icarl_herds_exemplars_and_predicts_the_nearest_mean():
    model = network()
    mine = learner(model, STREAM, capacity=12)
    method = ICaRL()

    def features(x):
        found = inputs(x).flatten(1).numpy() @ model.fc1.weight.detach().numpy().T + model.fc1.bias.detach().numpy()
        found = numpy.maximum(found, 0)
        return found / numpy.maximum(numpy.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    kept = []
    for number in (0, 1):
        method.end_task(mine, STREAM.tasks[number], number)
        share = 12 // (2 * (number + 1))
        kept = [rows[:share] for rows in kept]
        for c in STREAM.tasks[number].classes:
            rows = STREAM.tasks[number].train.x[STREAM.tasks[number].train.y == c]
            phi, picks = features(rows), []
            for k in range(1, share + 1):
                rest = [i for i in range(len(rows)) if i not in picks]
                distance = [numpy.linalg.norm(phi.mean(0) - phi[[*picks, i]].sum(0) / k) for i in rest]
                picks.append(rest[int(numpy.argmin(distance))])
            kept.append(rows[picks])
    assert mine.buffer["y"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert torch.equal(mine.buffer["x"], torch.cat(kept))

    means = numpy.stack([features(rows).mean(0) for rows in kept])
    means /= numpy.linalg.norm(means, axis=1, keepdims=True)
    x = STREAM.tasks[1].test.x
    expected = ((features(x)[:, None] - means[None]) ** 2).sum(2).argmin(1)
    model.eval()
    with torch.no_grad():
        scores = method.predict(mine, inputs(x))
    assert scores.argmax(1).tolist() == expected.tolist()
    many = method.predict(mine, inputs(x).repeat(20, 1, 1, 1))  # for which cdist goes another way, where ∞ - ∞ is NaN
    assert torch.allclose(many[: len(x), :4], scores[:, :4], atol=1e-3)
    for found in (scores, many):
        assert bool((found[:, 4:] == -torch.inf).all())  # classes without exemplars


def test_icarl_predicts_with_its_output_layer_once_that_was_finetuned():
    model = network()
    mine = learner(model, STREAM, capacity=12)
    method = ICaRL()
    method.end_task(mine, STREAM.tasks[0], 0)
    mine.finetuned = True
    x = inputs(STREAM.tasks[0].test.x)
    assert torch.equal(method.predict(mine, x), model(x))


def test_icarl_says_what_it_needs():
    with pytest.raises(ValueError, match="buffer is 5; .* with 6 classes it must be 6 or more"):
        ICaRL().begin(learner(network(), STREAM, capacity=5))
    with pytest.raises(ValueError, match="icarl needs a network with features"):
        ICaRL().begin(learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), STREAM, capacity=8))
    other = dataclasses.replace(STREAM, tasks=STREAM.tasks[::-1])
    with pytest.raises(ValueError, match="icarl needs classes numbered in the order of the tasks"):
        ICaRL().begin(learner(network(), other, capacity=8))
    first, second, third = STREAM.tasks
    joined = [
        Split(torch.cat([a.x, b.x]), torch.cat([a.y, b.y]))
        for a, b in ((first.train, third.train), (first.test, third.test))
    ]
    again = dataclasses.replace(STREAM, tasks=(first, second, Task(*joined, (0, 1, 4, 5))))
    with pytest.raises(ValueError, match="takes a class's exemplars from one task; class 0 is in tasks 1, 3$"):
        ICaRL().begin(learner(network(), again, capacity=8))


def test_icarl_distils_from_the_former_network_in_evaluation_mode():
    model = with_seed(lambda: networks.resnet18(6, channels=1, width=2), 0)
    mine = learner(model, STREAM, capacity=12)
    method = ICaRL()
    method.end_task(mine, STREAM.tasks[0], 0)
    assert model.training
    assert not any(module.training for module in method.former.modules())
    again = ICaRL()
    again.load_state_dict(mine, method.state_dict(mine))
    assert not any(module.training for module in again.former.modules())


# ---- FDR


def test_fdr_adds_the_distance_of_the_probabilities():
    model = network()
    twin = copy.deepcopy(model)
    stored = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    mine = learner(model, STREAM, capacity=3)
    x, _ = filled(mine, logits=stored, task=torch.zeros(3, dtype=torch.int64))
    loss, _ = FDR(alpha=0.6).step(mine, batch(1))
    difference = F.softmax(twin(x), 1) - F.softmax(stored, 1)
    term = (difference**2).sum(1).sqrt().mean()
    expected = F.cross_entropy(twin(inputs(batch(1).x)), batch(1).y) + 0.6 * term
    torch.testing.assert_close(loss, expected.detach())
    assert_stepped(model, twin, expected)


def test_fdr_shares_its_memory_between_the_tasks_seen():
    model = network()
    mine = learner(model, STREAM, capacity=12)
    for number, task in enumerate(STREAM.tasks):
        FDR().end_task(mine, task, number)
        assert mine.buffer["task"].bincount().tolist() == [12 // (number + 1)] * (number + 1)
    torch.testing.assert_close(mine.buffer["logits"], model(inputs(mine.buffer["x"])).detach())
    assert torch.equal(mine.buffer["y"] // 2, mine.buffer["task"])


@pytest.mark.parametrize(("capacity", "sizes"), [(12, [4, 4, 4]), (9, [5, 4]), (5, [5])])
def test_fdr_keeps_the_outputs_of_a_training_pass(capacity, sizes):
    """With the statistics of each batch, not the running ones, and no batch is left with a single image."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 6))
    model[1].running_mean.fill_(5.0)
    twin = copy.deepcopy(model).train()
    mine = learner(model, STREAM, capacity=capacity)
    FDR().end_task(mine, STREAM.tasks[0], 0)
    expected = torch.cat([twin(inputs(part)) for part in mine.buffer["x"].split(sizes)])
    torch.testing.assert_close(mine.buffer["logits"], expected.detach())
    assert torch.equal(model[1].running_mean, torch.full((4,), 5.0))  # it is not changed by that
    assert model[1].num_batches_tracked == 0


def test_fdrs_memory_may_be_a_single_image_for_a_task():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 6))
    mine = learner(model, STREAM, capacity=1)
    FDR().end_task(mine, STREAM.tasks[0], 0)
    torch.testing.assert_close(mine.buffer["logits"], model.eval()(inputs(mine.buffer["x"])).detach())


# ---- GDumb


def test_gdumb_trains_on_its_memory_alone():
    model = network(hidden=(20,))
    before = [p.detach().clone() for p in model.parameters()]
    mine = learner(model, STREAM, capacity=24, policy="balanced")
    method = GDumb(memory_epochs=60, lr_high=0.5, cutmix=0.0)
    method.begin(mine)
    for number, task in enumerate(STREAM.tasks):
        for x, y in zip(task.train.x.split(4), task.train.y.split(4), strict=True):
            method.step(mine, Batch(x, y, number))
            mine.buffer.add({"x": x, "y": y})
    assert all(torch.equal(p, start) for p, start in zip(model.parameters(), before, strict=True))
    assert mine.buffer["y"].bincount().tolist() == [4] * 6
    list(method.finish(mine))
    right = model(inputs(mine.buffer["x"])).argmax(1) == mine.buffer["y"]
    assert right.float().mean() > 0.8


def test_gdumbs_learning_rate_is_that_of_torchs_warm_restarts():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=0.0005)
    expected = [0.005, 0.05]
    for _ in range(2, 40):
        optimizer.step()
        schedule.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert [learning_rate(epoch, 0.05, 0.0005) for epoch in range(40)] == pytest.approx(expected)


def test_cutmix_pastes_a_box_and_tells_what_is_left():
    mixed, share = cut_and_mix(torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8), torch.tensor([0.75, 0.5, 0.5]))
    # side √¼ = ½ of 8: a box of 4×4 around (4, 4)
    assert mixed[0, 0].sum() == 16
    assert bool((mixed[0, 0, 2:6, 2:6] == 1).all())
    assert share == 1 - 16 / 64


def test_cutmix_of_examples_with_one_dimension_pastes_a_piece():
    """Labels are mixed by the share that is left of each of them."""
    mixed, share = cut_and_mix(torch.zeros(3, 8), torch.ones(3, 8), torch.tensor([0.5, 0.9, 0.5]))
    assert mixed.tolist() == [[0, 0, 1, 1, 1, 1, 0, 0]] * 3  # half of 8 around 4
    assert share == 0.5


def test_gdumb_does_all_its_epochs_after_a_run_that_was_broken_off():
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


def test_gdumb_starts_from_the_initial_network_also_within_k_fpf():
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


def test_icarl_in_a_second_run_does_not_compute_with_the_network_of_the_first(monkeypatch):
    used, counted = ICaRL(), []
    for size, method in ((4, used), (6, used), (6, ICaRL())):
        monkeypatch.setattr(flops, "_KNOWN", {})
        model = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
        run = train(small_stream(), method, model, batch=size, lr=0.1, buffer=12)
        *_, end = run
        counted.append(end.result.flops["train"])
    assert counted[1] == counted[2]


def test_oewc_with_a_group_frozen_penalises_each_parameter_by_its_own_information():
    stream = small_stream(per_class=12)
    network = with_seed(lambda: mlp(6, inputs=4, hidden=(8,)), 0)
    method = OnlineEWC(penalty=1.0)
    for _ in train(stream, method, network, epochs=1, batch=6, lr=0.1, freeze=["fc1"]):
        pass
    assert [tuple(p.shape) for p in method.covered] == [tuple(f.shape) for f in method.fisher] == [(6, 8), (6,)]
    assert method.covered[0] is network.fc2.weight


@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        ("derpp", {"alpha": -1.0}, "alpha is -1.0; it must be a finite number of 0 or more"),
        ("fdr", {"alpha": -1.0}, "alpha is -1.0"),
        ("oewc", {"fisher_examples": -1}, "fisher_examples is -1; it must be a finite number of 0 or more"),
        ("mas", {"examples": -5}, "examples is -5"),
        ("si", {"c": -1.0}, "c is -1.0"),
        ("mir", {"candidates": 0}, "candidates is 0; it must be a finite number of 1 or more"),
        ("gdumb", {"cutmix": 5.0}, "cutmix is 5.0; it must be a finite number of 0 or more and 1 or less"),
        ("gdumb", {"lr_high": -0.05}, "lr_high is -0.05; it must be a finite number above 0"),
        ("gdumb", {"memory_epochs": -1}, "memory_epochs is -1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_when_the_method_is_made(name, given, match):
    with pytest.raises(ValueError, match=match):
        catalogue.load("method", name)(**given)


def test_settings_that_count_are_whole_and_bounds_have_their_names():
    with pytest.raises(ValueError, match="fisher_examples is 10.5; it must be a whole number"):
        OnlineEWC(fisher_examples=10.5)
    with pytest.raises(TypeError, match="a setting has the bounds above, least and most, not min"):
        setting(0.1, "weight", min=0)
