"""Repairs keep what lowers the held-out loss and undo the rest; the one at the end finds its rate by trials."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from loops import filled, normalised, state
from torch import nn

from forgetless import Buffer, NonFiniteError
from forgetless.repair.bench import Bench, Outcome, Rate, drain
from forgetless.repair.finetuning import Finetuned, Finetuning
from forgetless.repair.held_out import Score
from forgetless.repair.objective import Objective
from forgetless.repair.tuning import Tuner


def bench_of(model, buffer, seed=0, objective=None):
    """Return where a repair of ``model`` works."""
    generator, objective = torch.Generator().manual_seed(seed), objective or Objective()
    return Bench.for_buffer(
        model,
        buffer,
        objective,
        lambda names, descent: Finetuning(model, buffer, names, descent, objective, generator),
    )


def repair(tuner, bench, names, limit):
    """Repair during training, or with a limit at the end."""
    return tuner.repair_briefly(bench, names, 2, 8) if limit is None else tuner.repair_fully(bench, names, limit)


def names_of(model):
    return list(dict(model.named_parameters()))


def regression(scale):
    """Return a linear model in double precision, and 64 examples whose features have these scales."""
    torch.manual_seed(0)
    buffer, x = Buffer(64), torch.randn(64, 4, dtype=torch.float64) * torch.tensor(scale)
    buffer.add({"x": x, "y": x @ torch.randn(4, 1, dtype=torch.float64)})
    return nn.Linear(4, 1).double(), buffer


def trial_by_hand(model, buffer, optimizer, lr):
    """Return the held-out loss after five steps of torch's own optimizer on all other examples."""
    model = copy.deepcopy(model)
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](model.parameters(), lr=lr)
    held = torch.arange(64) % 8 == 0
    for step in range(5):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / 5)) / 2
        optimizer.zero_grad()
        F.mse_loss(model(buffer["x"][~held]), buffer["y"][~held]).backward()
        optimizer.step()
    return F.mse_loss(model(buffer["x"][held]), buffer["y"][held]).item()


@pytest.mark.parametrize(
    ("scale", "winner"),
    [([1.0, 1.0, 1.0, 1.0], "sgd"), ([2.5, 2.5, 2.5, 2.5], "sgd"), ([900.0, 1.0, 1.0, 1.0], "adam")],
)
def test_the_search_picks_what_an_exhaustive_one_picks(scale, winner):
    model, buffer = regression(scale)
    before = F.mse_loss(model(buffer["x"][::8]), buffer["y"][::8]).item()
    starts = {"sgd": 0.1, "adam": 0.001}
    trials = {
        (name, power): trial_by_hand(model, buffer, name, start / 3**power)
        for name, start in starts.items()
        for power in range(10)
    }
    assert min(starts, key=lambda name: trials[name, 0]) == winner
    losses = [trials[winner, power] for power in range(10)]
    enough = before - 0.97 * (before - min(losses))
    best = max(power for power in range(10) if losses[power] <= enough)
    bench, tuner = bench_of(model, buffer, objective=Objective(loss=F.mse_loss)), Tuner(batch=64, distill=0.0)
    done = drain(tuner.repair_fully(bench, names_of(model), 20))
    assert done.rate == Rate(winner, pytest.approx(starts[winner] / 3**best))


def test_a_search_changes_nothing():
    model = normalised()
    buffer, before = filled(shape=(16,), classes=4), state(model)
    tuner, bench = Tuner(batch=8, distill=0.0), bench_of(model, buffer)
    assert drain(tuner._search(bench, names_of(model), bench.begin_measuring()())).optimizer in ("sgd", "adam")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_loss_of_zero_ends_the_search():
    model = nn.Linear(4, 2)
    buffer, y = Buffer(32), torch.arange(32) % 2
    buffer.add({"x": F.one_hot(y, 4).float(), "y": y})
    with torch.no_grad():
        model.weight.copy_(1e4 * torch.eye(2, 4))
    before, tuner = state(model), Tuner(batch=8, distill=0.0)
    bench = bench_of(model, buffer, objective=Objective(loss=F.cross_entropy))
    done = drain(tuner.repair_fully(bench, names_of(model), limit=200))
    assert (done.before.loss, done.after.loss, done.losses) == (0.0, 0.0, ())
    assert tuner.steps == 3 * 5 + 3 * 20  # three trials, and three attempts that did not lower the loss
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("limit", [None, 150])
def test_a_harmful_repair_is_undone_bit_for_bit(limit):
    """Its batch-norm statistics and their counters, too. The labels of held-out examples contradict all others."""
    model = normalised().double()
    buffer, y = Buffer(64), torch.arange(64) // 2 % 4
    held = torch.arange(64) % 8 == 0
    buffer.add({"x": F.one_hot(y, 16).double() + 0.1 * torch.rand(64, 16), "y": torch.where(held, (y + 1) % 4, y)})
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    names = [name for name in model.state_dict() if "num_batches" not in name]
    before, tuner = state(model), Tuner(batch=8, distill=0.0)
    tuner.lr = 10.0
    done = drain(repair(tuner, bench_of(model, buffer), names, limit))
    assert (done.losses, done.undone) == ((), 2 if limit is None else 60)
    assert done.after == done.before
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    if limit is None:
        assert tuner.lr == 5.0


class Scripted:
    """A finetuning that only counts, whose scores are given."""

    def __init__(self, log, descent):
        self.steps = self.left = descent.steps
        self.drawn = descent.batch
        self._log, self._rate = log, descent.rates[0]

    def advance(self, count):
        self.left -= min(count, self.left)

    def finish(self):
        self._log.append((self.steps, self._rate))
        return Finetuned((1.0,) * self.steps, ("w",))

    def undo(self):
        self._log.append("undone")

    def losses(self):
        return [1.0] * self.steps


TRIALS = (4.0, 4.9, 4.5)  # of SGD with 0.1, Adam with 0.001 and SGD with 0.1 / 3: the first is the best


def scripted(losses, parts=(), overlaps=()):
    """Return a bench whose measurements have these losses, and the log of its finetunings."""
    log, scores, remaining, shares = [], iter(losses), iter(parts), iter(overlaps)
    return Bench(
        lambda names, descent: Scripted(log, descent),
        lambda: lambda: Score(next(scores), None, 8),
        lambda: next(remaining, [0.0] * 8),
        lambda: next(shares, None),
    ), log


@pytest.mark.parametrize("after", [4.0, 5.5])
def test_a_given_rate_is_for_one_finetuning(after):
    bench, log = scripted([5.0, after])
    done = drain(Tuner(batch=8, distill=0.0).repair_fully(bench, ["w"], 60, rate=Rate("adam", 0.01)))
    assert log == [(60, 0.01)] + ([] if after < 5 else ["undone"])
    assert (done.after.loss, len(done.losses)) == ((4.0, 60) if after < 5 else (5.0, 0))


def test_the_repair_at_the_end_stops_after_three_failures():
    bench, log = scripted([5.0, *TRIALS, 4.0, 4.5, 3.0, 3.0, 3.5, 9.0])
    tuner = Tuner(batch=8, distill=0.0)
    done = drain(tuner.repair_fully(bench, ["w"], limit=1000))
    assert done == Outcome(Score(5.0, None, 8), Score(3.0, None, 8), 80, (1.0,) * 40, Rate("sgd", 0.1))
    trials, kept, undone = log[:6], log[6:7] + log[9:10], log[7:9] + log[10:]
    assert trials == [(5, 0.1), "undone", (5, 0.001), "undone", (5, pytest.approx(0.1 / 3)), "undone"]
    assert kept == [(20, 0.1), (20, pytest.approx(0.075))]
    rates = [0.15, 0.1125, 0.1125 / 2, 0.1125 / 4]  # × 1.5 after each that was kept, / 2 after each that was not
    assert undone == [entry for rate in rates for entry in ((20, pytest.approx(rate)), "undone")]
    assert (tuner.steps, tuner.measured, tuner.lr) == (3 * 5 + 6 * 20, 11, 0.05)


@pytest.mark.parametrize(
    ("after", "parts", "kept"),
    [
        (3.7, [2.0, 2.0, 2.0, 8.8], True),  # by more than a quarter, however the four examples scatter
        (4.6, [4.7, 4.6, 4.5, 4.6], True),  # by less, but on every example alike
        (4.6, [3.0, 3.0, 3.0, 9.4], False),  # by less, and one example scatters as much
    ],
)
def test_a_small_fall_that_the_scatter_explains_is_undone(after, parts, kept):
    bench, log = scripted([5.0, *TRIALS, after, 6.0, 6.0, 6.0], [[5.0] * 4, parts])
    tuner = Tuner(batch=8, distill=0.0)
    done = drain(tuner.repair_fully(bench, ["w"], limit=1000))
    assert done.after.loss == (after if kept else 5.0)
    assert (len(done.losses), done.undone) == ((20, 60) if kept else (0, 80))
    assert log[7:].count("undone") == 3 + (not kept)


@pytest.mark.parametrize(("overlap", "kept"), [(0.39, False), (0.4, True)])
def test_a_repair_that_lowers_the_mean_overlap_is_undone(overlap, kept):
    bench, log = scripted([5.0, *TRIALS, 1.0, 9.0, 9.0, 9.0], overlaps=[0.4, overlap])
    done = drain(Tuner(batch=8, distill=0.0).repair_fully(bench, ["w"], limit=1000))
    assert done.after.loss == (1.0 if kept else 5.0)
    assert (len(done.losses), done.undone) == ((20, 60) if kept else (0, 80))
    assert log[7:].count("undone") == 3 + (not kept)


@pytest.mark.parametrize(
    ("accuracy", "loss", "kept"), [(1.0, 0.0009, False), (1.0, 0.0011, True), (0.99, 0.0009, True)]
)
def test_examples_known_by_heart_start_no_repair(accuracy, loss, kept):
    losses = iter([loss, 0.0004, 0.0006, 0.0005, 0.0001, 1.0, 1.0, 1.0])
    tuner = Tuner(batch=8, distill=0.0)
    bench = scripted([])[0]._replace(begin_measuring=lambda: lambda: Score(next(losses), accuracy, 8))
    done = drain(tuner.repair_fully(bench, ["w"], limit=1000, skip_known=True))
    assert done.after.loss == (0.0001 if kept else loss)
    assert len(done.losses) == (20 if kept else 0)
    assert (tuner.steps > 0) == kept


@pytest.mark.parametrize(
    ("accuracy", "trials", "rates"),
    [
        (0.49, (4.9, 4.95), [0.001, 0.001 / 3]),
        (0.5, TRIALS, [0.1, 0.001, 0.1 / 3]),
        (None, TRIALS, [0.1, 0.001, 0.1 / 3]),
    ],
)
def test_the_search_tries_only_adam_below_an_accuracy(accuracy, trials, rates):
    losses = iter([5.0, *trials, 3.0])
    bench, log = scripted([])
    bench = bench._replace(begin_measuring=lambda: lambda: Score(next(losses), accuracy, 8))
    done = drain(Tuner(batch=8, distill=0.0).repair_fully(bench, ["w"], limit=20, adam_below=0.5))
    assert log[::2] == [*((5, pytest.approx(rate)) for rate in rates), (20, rates[0])]
    assert done.rate == Rate("adam" if accuracy == 0.49 else "sgd", rates[0])


def test_what_is_undone_at_the_end_includes_all_that_was_kept():
    torch.manual_seed(0)
    model, buffer = nn.Linear(4, 2).double(), Buffer(16)
    buffer.add({"x": torch.randn(16, 4, dtype=torch.float64), "y": torch.arange(16) % 2})
    before, losses = state(model), iter([5.0, *TRIALS, 4.9, 4.8, 4.7, 6.0, 6.0, 6.0])
    bench = bench_of(model, buffer)._replace(begin_measuring=lambda: lambda: Score(next(losses), None, 2))
    done = drain(Tuner(batch=8, distill=0.0).repair_fully(bench, names_of(model), limit=1000))
    assert (done.losses, done.undone, done.after.loss) == ((), 120, 5.0)  # two held-out examples cannot tell
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_repair_at_the_end_stops_at_its_limit():
    bench, _ = scripted([5.0, *TRIALS, 4.0, 3.0, 2.0, 1.0])
    tuner = Tuner(batch=8, distill=0.0)
    assert drain(tuner.repair_fully(bench, ["w"], limit=3 * 5 + 41)).after.loss == 2.0
    assert tuner.steps == 3 * 5 + 60


@pytest.mark.parametrize(("after", "kept"), [(5.9, True), (6.1, False)])
def test_a_repair_during_training_may_raise_the_loss_by_a_fifth(after, kept):
    bench, log = scripted([5.0, after])
    tuner = Tuner(batch=8, distill=0.0)
    tuner.lr = 0.01
    done = drain(tuner.repair_briefly(bench, ["w"], 2, 4))
    assert ("undone" in log) == (not kept)
    assert done.after.loss == (after if kept else 5.0)
    assert tuner.lr == (0.02 if kept else 0.005)
    assert (tuner.steps, tuner.examples) == (2, 2 * 4)


@pytest.mark.parametrize(("scale", "rate"), [(0.0, 0.05), (4.0, 0.05), (40.0, 0.005)])
def test_large_inputs_get_smaller_rates(scale, rate):
    bench, _ = scripted([5.0, 6.1, 5.0, 4.0])
    tuner = Tuner(batch=8, distill=0.0)
    for expected in (rate / 2, rate):
        tuner.allow_for(scale)
        drain(tuner.repair_briefly(bench, ["w"], 2, 4))
        assert tuner.lr == pytest.approx(expected)


def test_the_rate_recovers_up_to_where_it_began():
    bench, _ = scripted([5.0, 6.1, 5.0, 6.1, *[5.0] * 6])
    tuner = Tuner(batch=8, distill=0.0)
    rates = []
    for _ in range(2 + 3 * 10):
        drain(tuner.repair_briefly(bench, ["w"], 2, 4))
        rates.append(tuner.lr)
    assert rates == [0.025, 0.0125, *[0.025] * 10, *[0.05] * 20]


def test_a_repair_that_was_kept_is_followed_by_nine_that_are_not_measured():
    bench, log = scripted([5.0, 6.1, 5.0, 4.0, 4.0, 3.0])
    tuner = Tuner(batch=8, distill=0.0)
    done = [drain(tuner.repair_briefly(bench, ["w"], 2, 4)) for _ in range(12)]
    assert [index for index, one in enumerate(done) if isinstance(one, Outcome)] == [0, 1, 11]
    assert done[5] == Finetuned((1.0, 1.0), ("w",))
    assert tuner.measured == 6
    assert log.count("undone") == 1


def test_the_first_repair_after_one_at_the_end_is_measured():
    bench, _ = scripted([5.0, 4.0, *[3.0] * 20])
    tuner = Tuner(batch=8, distill=0.0)
    drain(tuner.repair_briefly(bench, ["w"], 2, 4))
    assert not tuner.measures
    drain(tuner.repair_fully(bench, ["w"], limit=20))
    assert tuner.measures


def test_a_repair_that_fails_unmeasured_leaves_no_steps_and_the_next_one_is_measured():
    model = normalised()
    buffer, names = filled(shape=(16,), classes=4), names_of(model)
    tuner, bench = Tuner(batch=8, distill=0.0), bench_of(model, buffer)
    assert isinstance(drain(tuner.repair_briefly(bench, names, 2, 8)), Outcome)
    before, tuner.lr = state(model), 1e38
    assert drain(tuner.repair_briefly(bench, names, 2, 8)) == Finetuned((), tuple(names))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert tuner.lr == 5e37
    tuner.lr = 0.01
    assert isinstance(drain(tuner.repair_briefly(bench, names, 2, 8)), Outcome)


def test_trials_go_on_past_a_loss_that_is_not_finite():
    # Before; sgd 0.1 and adam 0.001; then sgd 0.1 / 3, / 9, / 27 and / 81; and the repair itself
    bench, log = scripted([5.0, math.nan, math.inf, math.inf, 2.0, 1.0, 1.5, 1.0])
    tuner = Tuner(batch=8, distill=0.0)
    assert drain(tuner.repair_fully(bench, ["w"], 20)).rate == Rate("sgd", pytest.approx(0.1 / 27))
    assert log.count("undone") == 6


def test_examples_that_are_not_finite_are_counted_in_the_error():
    torch.manual_seed(0)
    model, buffer, x = nn.Linear(4, 2), Buffer(16), torch.rand(16, 4)
    x[3, 1] = torch.nan
    buffer.add({"x": x, "y": torch.arange(16) % 2})
    before = state(model)
    with pytest.raises(NonFiniteError, match=r"The buffer holds NaN or infinity: 1 of its 16 rows of x"):
        drain(Tuner(batch=16, distill=0.0).repair_fully(bench_of(model, buffer), names_of(model), 100))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_network_with_nan_is_named_as_the_cause():
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    bench = bench_of(model, filled(shape=(4,), classes=2))
    with pytest.raises(NonFiniteError, match="loss on the held-out examples is nan before the repair: the network or"):
        drain(Tuner(batch=8, distill=0.0).repair_briefly(bench, names_of(model), 2, 8))


@pytest.mark.parametrize("limit", [None, 100])
def test_an_interrupted_measurement_leaves_no_steps(limit):
    model = normalised()
    buffer, before = filled(shape=(16,), classes=4), state(model)
    bench, measured = bench_of(model, buffer), []

    def interrupt():
        measured.append(bench.begin_measuring()())
        if len(measured) > 1:
            raise KeyboardInterrupt
        return lambda: measured[-1]

    tuner = Tuner(batch=8, distill=0.0)
    with pytest.raises(KeyboardInterrupt):
        drain(repair(tuner, bench._replace(begin_measuring=interrupt), names_of(model), limit))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_tuners_state_is_its_rate_its_cost_and_when_it_measures():
    bench, _ = scripted([5.0, 4.0])
    tuner, again = Tuner(batch=8, distill=0.0), Tuner(batch=8, distill=0.0)
    tuner.lr = 0.01
    drain(tuner.repair_briefly(bench, ["w"], 2, 4))
    again.load_state_dict(tuner.state_dict())
    assert again.state_dict() == {"lr": 0.02, "steps": 2, "examples": 8, "measured": 2, "trusted": 18}


@pytest.mark.parametrize(("after", "kept"), [(-2.9, True), (-1.7, True), (-1.5, False)])
def test_a_negative_loss_may_rise_by_a_fifth_too(after, kept):
    bench, log = scripted([-2.0, after])
    drain(Tuner(batch=8, distill=0.0).repair_briefly(bench, ["w"], 2, 4))
    assert ("undone" not in log) == kept
