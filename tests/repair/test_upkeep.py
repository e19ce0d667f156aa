"""Repairs within a budget: when they happen, what they cost, and what they leave as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from loops import accuracy, make, moved, normalised, run, shifting, state
from sklearn.datasets import load_diabetes, load_wine
from torch import nn

from forgetless import FPF, Buffer, NonFiniteError, networks, repair
from forgetless.repair.bench import drain
from forgetless.repair.objective import Objective
from forgetless.repair.report import Report
from forgetless.repair.settings import Finetune
from forgetless.repair.upkeep import Upkeep, _scale


def test_repairs_happen_when_a_quarter_of_the_budget_pays_for_one():
    """Steps have 32 examples, repairs 2 × 32. From step 134 on the reserve is 100 steps, no longer three quarters."""
    upkeep = Upkeep(networks.mlp(4), Finetune.within(1.0, batch=32), Objective())
    due = []
    for step in range(1, 151):
        if upkeep.advance(32):
            due.append(step)
            upkeep.tuner.examples += 2 * 32  # as a repair would
    assert due == [*range(8, 129, 8), *range(134, 151, 2)]
    assert upkeep.account.spent == 25 * 64
    assert upkeep.account.limit() == 150 - 25 * 2


def test_a_loaded_state_decides_when_the_next_repair_is_due():
    late, early = (Upkeep(networks.mlp(4), Finetune.within(1.0, batch=32), Objective()) for _ in range(2))
    state = early.state_dict()
    late.tuner.examples = 10_000
    assert not late.advance(32)
    late.load_state_dict(state)
    assert [step for step in range(1, 9) if late.advance(32)] == [8]


@pytest.mark.parametrize("learns", ["classes", "numbers"])
def test_data_that_nobody_scaled_is_learned_as_without_fpf(learns):
    """At rates for scaled data, repairs end at the most frequent class, and at an error of 1e27."""
    data = load_wine() if learns == "classes" else load_diabetes()
    x, y = torch.tensor(data.data).float(), torch.tensor(data.target)
    if learns == "numbers":
        x, y = 20 * x, y.float()[:, None]  # about 1, and up to 346
    loss = F.cross_entropy if learns == "classes" else F.mse_loss
    final = []
    for repairs in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 3 if learns == "classes" else 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if learns == "classes" else 1e-2)
        fpf = FPF(model, loss=None if learns == "classes" else loss)
        for rows in torch.randperm(len(x)).repeat(60).split(16):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
            if repairs:
                fpf.observe(x[rows], y[rows])
        final.append(loss(model(x), y).item())
    assert final[1] < 1.5 * final[0]


def test_the_rate_is_for_the_largest_finite_input_or_target():
    numbers = torch.tensor([[3.0], [torch.nan], [4.0]] * 4)
    columns = {"x.a": torch.ones(12, 2), "x.mask": torch.full((12, 2), -torch.inf), "y.a": torch.zeros(12)}
    for name, mean in (("y.b", 12.5), ("x.b", 12.5)):
        buffer = Buffer(96)
        buffer.add({key: column.repeat_interleave(8, 0) for key, column in {**columns, name: numbers}.items()})
        assert _scale(buffer, Objective(), nn.Linear(2, 1)) == mean
    normalising = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert _scale(buffer, Objective(), normalising) == 0.0  # of y.a, since batch norm scales the inputs


def test_augmentation_in_place_leaves_the_buffer_alone():
    torch.manual_seed(0)
    x, y, model = torch.rand(400, 4), torch.arange(400) % 2, nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fpf = FPF(model, 64, augment=lambda inputs: inputs.sub_(0.5).div_(0.25))
    for rows in torch.arange(400).repeat(2).split(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        fpf.observe(x[rows], y[rows])
    assert fpf.finetunings > 10
    assert set(fpf.buffer["x"].flatten().tolist()) <= set(x.flatten().tolist())


def test_a_measurement_costs_a_third_of_its_examples():
    upkeep = Upkeep(networks.mlp(4), Finetune.within(1.0, batch=10), Objective())
    upkeep.tuner.examples, upkeep.tuner.measured, upkeep.account.held, upkeep.account.trained = 70, 6, 33, 1000
    assert upkeep.account.held_out == 5
    assert upkeep.account.spent == 70 + 6 * 5 / 3
    assert upkeep.account.cost == pytest.approx(0.08)
    assert upkeep.account.limit() == 100  # at least; 92 are left of the budget
    upkeep.account.held = 500
    assert upkeep.account.limit() == 450  # nine passes over the buffer


@pytest.mark.parametrize("budget", [0.5, 2.0])
def test_the_budget_holds_during_training_and_at_the_end(budget):
    model, shape = make("mlp")
    fpf = FPF(model, capacity=64, budget=budget, groups="all")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    upkeep, repaired, taken = fpf._repairer, [], 0
    for step, (x, y) in enumerate(shifting(shape, steps=200), start=1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        earned = budget * 16 * step
        affordable = int((earned - min(0.75 * earned, 100 * 32) - upkeep.account.spent) / 16)
        due = step % 2 == 0 and affordable >= 2 and len(fpf.buffer) == 64
        done, taken = fpf.observe(x, y), upkeep.tuner.steps - taken
        assert taken == affordable * due, f"step {step}"
        assert (done is not None) == due, f"step {step}"
        taken = upkeep.tuner.steps
        repaired += [step] * due
    # A quarter of what is earned, 4 · budget · step, pays for 32 examples, and four batches fill the buffer.
    assert repaired[0] == max(8 / budget, 6)
    assert upkeep.account.spent <= budget * upkeep.account.trained
    assert fpf.finetunings == len(repaired)
    report = fpf.finish()
    account = upkeep.account
    assert account.spent <= budget * account.trained + (100 + 20) * 32  # 20: the last finetuning may exceed the limit
    assert report.cost == pytest.approx(upkeep.account.spent / 6400)


@pytest.mark.parametrize("kind", ["cnn", "transformer", "mlp"])
def test_defaults_keep_what_plain_training_forgets(kind, device):
    model, shape = make(kind)
    model.to(device)
    run(model, shape, device=device)
    assert accuracy(model, shape, device) < 0.8
    model, shape = make(kind)
    model.to(device)
    report = run(model, shape, FPF(model, capacity=64), device=device)
    assert isinstance(report, Report)
    assert accuracy(model, shape, device) > 0.9
    assert report.loss_after <= report.loss_before


def test_a_first_repair_waits_for_64_examples():
    model, shape = make("mlp")
    fpf = FPF(model, budget=0.25)
    done = [fpf.observe(x[:8], y[:8]) is not None for x, y in list(shifting(shape))[:40]]
    # 2 examples are earned in each step, three quarters for the end: 16 after 32 steps. The buffer has 64 after 8.
    assert done.index(True) == 31
    fpf = FPF(model, budget=10, batch=8)
    done = [fpf.observe(x[:8], y[:8]) is not None for x, y in list(shifting(shape))[:20]]
    assert done.index(True) == 9  # 64 are stored after 8 steps, and repairs follow every second step


def test_a_repair_during_training_takes_the_steps_that_are_earned_up_to_50():
    model, shape = make("mlp")
    fpf = FPF(model, capacity=64, budget=1)
    taken = []
    for x, y in list(shifting(shape, batch=512))[:4]:
        done = fpf.observe(x, y)
        taken.append(done and len(done.losses))
    # Two steps earn 1024 examples, a quarter of which pays for eight steps of 32. The next two earn the same,
    # less what two measurements of eight examples cost.
    assert taken == [None, 8, None, 7]
    fpf._repairer.account.trained = 10**6
    fpf.observe(x, y)
    assert len(fpf.observe(x, y).losses) == 50


@pytest.mark.parametrize(("training", "repair"), [(1, 2), (10, 10), (128, 32)])
def test_a_repair_step_is_as_large_as_a_training_step_up_to_32(training, repair):
    upkeep = Upkeep(networks.mlp(4), Finetune.within(1.0), Objective())
    upkeep.advance(training)
    upkeep.advance(1)  # the last batch of an epoch may be small
    assert upkeep.account.batch == repair


def test_the_movement_that_is_scored_is_what_training_moved_between_two_repairs():
    model, shape = make("mlp")
    fpf = FPF(model, capacity=64, budget=2)
    optimizer, upkeep, last = torch.optim.SGD(model.parameters(), lr=0.1), fpf._repairer, state(model)
    movement: dict = {}
    for x, y in list(shifting(shape))[:60]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        trained, measures = state(model), upkeep.tuner.measures
        if fpf.observe(x, y):
            movement = {name: trained[name] - last[name] for name in trained} if measures else movement
            last = state(model)
    assert upkeep.finetunings > 10
    now, before = state(model), upkeep._anchor.before()
    for name in before:
        torch.testing.assert_close(before[name], now[name] - movement[name], rtol=0, atol=1e-6)


def test_a_harmful_repair_is_undone_and_counted():
    model = normalised()
    fpf = FPF(model, capacity=64, budget=10)
    fpf._repairer.tuner.lr = 1000.0
    for x, y in shifting((16,)):
        before = state(model)
        if done := fpf.observe(torch.randn_like(x), torch.randint(4, y.shape)):
            break
    assert (done.undone, done.losses) == (15, ())  # six steps earned 960 examples, a quarter of which pays for 15 · 16
    assert moved(before, model) == set()
    assert fpf._repairer.tuner.lr == 500.0
    assert "; repairs: 1, undone: 1, cost: " in str(fpf.profile())


def test_finish_leaves_a_perfect_network_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[2].weight.copy_(1e5 * torch.eye(2, 4))
    y = torch.arange(32) % 2
    fpf = FPF(model)
    fpf.observe(torch.cat([F.one_hot(y), torch.rand(32, 2)], 1), y)
    before = state(model)
    report = fpf.finish()
    assert (report.loss_before, report.loss_after, report.accuracy_after, report.steps) == (0.0, 0.0, 1.0, 0)
    assert report.tried == 0  # the examples are known by heart, so nothing is searched
    assert moved(before, model) == set()
    assert "the weights are unchanged" in str(report)


def predicting(share, norm):
    """Return a network that predicts this share of the examples, and the examples."""
    y = torch.arange(64) // 8 % 4
    model = nn.Sequential(norm, nn.Linear(4, 4, bias=False)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(4).roll(1, 0))
    predicted = torch.arange(64) // 8 < 8 * share
    return model, F.one_hot(torch.where(predicted, y - 1, y) % 4, 4).float(), y


@pytest.mark.parametrize(
    ("share", "norm", "optimizer"),
    [(6 / 8, nn.Identity(), "adam"), (7 / 8, nn.Identity(), "sgd"), (6 / 8, nn.BatchNorm1d(4), "sgd")],
)
def test_finish_uses_adam_if_enough_is_forgotten_without_batch_norm(share, norm, optimizer):
    model, x, y = predicting(share, norm)
    fpf = FPF(model, policy="reservoir")
    fpf.remember(x, y)
    report = fpf.finish()
    assert (report.accuracy_before, report.optimizer) == (share, optimizer)


def test_only_finish_uses_adam_for_what_is_forgotten():
    """Neither the repair of a finished network nor the benchmark's repair at the end does."""
    model, x, y = predicting(3 / 8, nn.Identity())
    assert repair(copy.deepcopy(model), (x, y)).optimizer == "sgd"
    buffer = Buffer(64)
    buffer.add({"x": x, "y": y})
    upkeep = Upkeep(model, Finetune.within(1.0), Objective())
    assert drain(upkeep.repair(upkeep.names(), buffer, torch.Generator(), at_end=True)).rate.optimizer == "sgd"


@pytest.mark.parametrize("policy", ["reservoir", "distinct"])
@pytest.mark.parametrize("stop", [3, 40, 97])
def test_a_restored_run_resumes_bit_for_bit(tmp_path, device, policy, stop):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
        fpf = FPF(model.to(device), 40, budget=10, distill=0.3, policy=policy, seed=7)
        return model, fpf, torch.optim.SGD(model.parameters(), lr=0.1)

    def go(model, fpf, optimizer, batches):
        for x, y in batches:
            logits = model(x)
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()
            optimizer.step()
            fpf.observe(x, y, logits)

    batches = list(shifting((16,), device=device))
    model, fpf, optimizer = build()
    go(model, fpf, optimizer, batches[:stop])
    rng = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    torch.save([model.state_dict(), fpf.state_dict(), rng], tmp_path / "state.pt")
    go(model, fpf, optimizer, batches[stop:])
    report = fpf.finish()
    assert fpf.finetunings > 2
    again, resumed, optimizer = build()
    weights, saved, rng = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(weights)
    resumed.load_state_dict(saved)
    torch.cuda.set_rng_state(rng) if device == "cuda" else torch.set_rng_state(rng)
    go(again, resumed, optimizer, batches[stop:])
    resumed_report = resumed.finish()
    assert {**resumed_report.to_dict(), "seconds": 0} == {**report.to_dict(), "seconds": 0}
    assert moved(model.state_dict(), again) == set()


def test_a_head_may_grow():
    model, shape = make("mlp")
    model.fc3 = nn.Linear(100, 2)
    fpf = FPF(model, capacity=64, budget=5)
    for step, (x, y) in enumerate(shifting(shape)):
        if step == 60:  # classes 2 and 3 begin
            old, model.fc3 = model.fc3, nn.Linear(100, 4)
            with torch.no_grad():
                model.fc3.weight[:2], model.fc3.bias[:2] = old.weight, old.bias
            fpf.boundary()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        fpf.observe(x, y)
    report = fpf.finish()
    assert accuracy(model, shape) > 0.9
    assert [group.parameters for group in report.groups] == [1700, 10100, 404]
    assert {"fc3.weight", "fc3.bias"} <= set(fpf._repairer.names())


def test_a_grown_network_resumes_from_a_smaller_ones_state():
    (small, shape), (large, _) = make("mlp"), make("mlp")
    saved = FPF(small, capacity=64)
    for x, y in list(shifting(shape))[:8]:
        saved.observe(x, y)
    large.fc3 = nn.Linear(100, 12)
    fpf = FPF(large, capacity=64)
    fpf.load_state_dict(saved.state_dict())
    report = fpf.finish()
    assert {group.name: group.score is None for group in report.groups} == {"fc1": False, "fc2": False, "fc3": True}
    with pytest.raises(ValueError, match="saved from another network: none of its parameters has this name and shape"):
        FPF(networks.mlp(10, 16, hidden=(9,)), 64).load_state_dict(saved.state_dict())


def test_remembered_examples_are_repaired():
    """The training has classes 2 and 3 only; the classes before it are remembered."""
    model, shape = make("mlp")
    batches = list(shifting(shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fpf = FPF(model, capacity=64)
    for x, y in batches[:2]:
        fpf.remember(x, y)
    assert (fpf.step, fpf._repairer.account.trained) == (0, 0)
    for x, y in batches[60:]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)
    report = fpf.finish()
    assert accuracy(model, shape) > 0.9
    assert {line.label for line in report.classes} == {0, 1, 2, 3}


def test_repairs_without_training_state_no_cost():
    fpf = FPF(normalised())
    fpf.remember(torch.randn(64, 16), torch.arange(64) % 4)
    report = fpf.finish()
    assert report.cost is None
    assert "× the training" not in str(report)
    assert str(fpf.profile()).endswith(f"repairs: 1, undone: {int(not report.steps)}")


@pytest.mark.parametrize("capacity", [24, 200])
def test_a_buffer_may_have_another_size_when_loaded(capacity):
    model, shape = make("mlp")
    saved, resumed = FPF(model, capacity=64, budget=5), FPF(copy.deepcopy(model), capacity=capacity, budget=5)
    batches = list(shifting(shape))
    for x, y in batches[:30]:
        saved.observe(x, y)
    resumed.load_state_dict(saved.state_dict())
    assert len(resumed.buffer) == min(capacity, 64)
    for x, y in batches[30:]:
        resumed.observe(x, y)
    assert len(resumed.buffer) == capacity
    assert resumed.finish().examples == capacity


def test_diverged_training_is_an_error():
    model, shape = make("mlp")
    fpf = FPF(model, 64)
    batches = shifting(shape)
    fpf.observe(*next(batches))
    with torch.no_grad():
        model.fc1.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="held-out examples is nan before the repair: the network or the examples"):
        fpf.finish()


@pytest.mark.parametrize("budget", [0, -1, 11, "much", float("nan")])
def test_a_budget_outside_its_range_is_refused(budget):
    with pytest.raises(ValueError, match=f"budget is {budget!r}; it must be a finite number above 0 and 10 or less"):
        FPF(networks.mlp(4), budget=budget)


@pytest.mark.parametrize(
    ("name", "value"),
    [("every", 5), ("steps", 5), ("lr", 0.1), ("threshold", 1.0), ("window", 5), ("detect", False)],
)
def test_a_budget_and_a_schedule_exclude_each_other(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}, but budget is 1: a budget replaces the schedule; give"):
        FPF(networks.mlp(4), budget=1, **{name: value})


def test_a_whole_budget_and_another_one_resume():
    state = FPF(networks.mlp(4), budget=1).state_dict()
    FPF(networks.mlp(4), budget=1).load_state_dict(state)  # without a warning
    with pytest.warns(UserWarning, match=r"saved with budget 1\.0; this FPF has 2\.0"):
        FPF(networks.mlp(4), budget=2).load_state_dict(state)


@pytest.mark.parametrize(("bad", "repairs"), [(4, 0), (8, 2)])  # the first repair is measured, the third one is not
def test_later_bad_labels_fail_at_the_repair_during_training(bad, repairs):
    model, shape = make("mlp")
    fpf = FPF(model, 64, budget=10)
    x, y = next(shifting(shape))
    with pytest.raises(ValueError, match="labels from 0 to 101; the network has 10 outputs"):
        for step in range(1, 20):
            before = state(model)
            fpf.observe(x + step, y + 100 * (step >= bad))
    assert moved(before, model) == set()
    assert fpf.finetunings == repairs


def test_what_is_frozen_is_not_repaired():
    model, shape = make("mlp")
    fpf = FPF(model, 64, budget=10, groups=["fc3"])
    model.fc3.requires_grad_(False)
    before, batches = state(model), list(shifting(shape))
    for x, y in batches[:5]:
        fpf.observe(x, y)
    with pytest.warns(UserWarning, match="at step 6, but nothing was finetuned: fc3, which is chosen, is frozen"):
        assert fpf.observe(*batches[5]) is None
    for x, y in batches[6:8]:
        assert fpf.observe(x, y) is None  # it warns once
    with pytest.warns(UserWarning, match="nothing was finetuned in 8 steps: fc3, which is chosen, is frozen"):
        assert fpf.finish() is None
    assert moved(before, model) == set()
    model.fc3.requires_grad_(True)
    model.fc3.bias.requires_grad_(False)
    assert fpf.finish().names == ("fc3.weight",)


@pytest.mark.parametrize("labelled", [1, 2])
def test_few_labels_do_not_stop_the_training(labelled):
    model, shape = normalised(), (16,)
    fpf = FPF(model, 64, budget=10, policy="reservoir")
    for step, (x, y) in zip(range(20), shifting(shape), strict=False):
        y[labelled if step == 0 else 0 :] = -100
        assert fpf.observe(x, y) is None
    assert fpf.finetunings == 0
