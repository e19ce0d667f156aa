from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from loops import filled, make, normalised, shifting
from torch import nn

from forgetless import FPF, Buffer
from forgetless.repair.final import correct_by_class
from forgetless.repair.held_out import Score, evaluating, fell, mean_overlap, measure, measure_parts
from forgetless.repair.objective import Objective


def test_the_score_is_that_of_every_eighth_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
    buffer = filled(shape=(3, 2, 2))
    score = measure(model, buffer, Objective())
    x, y = buffer["x"][::8], buffer["y"][::8]
    logits = model.eval()(x)
    assert score.loss == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-6)
    assert score.accuracy == pytest.approx((logits.argmax(1) == y).float().mean().item())
    assert score.examples == 8


def test_the_score_counts_the_examples_of_all_processes():
    buffer = Buffer(16)
    buffer.add({"x": torch.zeros(16, 2), "y": torch.arange(16) // 8})
    uneven = SimpleNamespace(mean=lambda sums: sums * 3 / 4, count=2)  # two are held out here, one in the other process
    score = measure(nn.Linear(2, 2), buffer, Objective(), processes=uneven)
    assert score.examples == 3


def test_the_accuracy_of_a_class_is_over_all_processes():
    buffer = Buffer(16)
    buffer.add({"x": torch.zeros(16, 2), "y": torch.arange(16) // 8})  # held out: one example of each class
    two = SimpleNamespace(gather=lambda pairs: [pairs, [(1, 1.0), (2, 0.0)]])
    model = nn.Linear(2, 3)
    model.bias.data = torch.tensor([1.0, 0.0, 0.0])  # predicts class 0
    assert correct_by_class(model, buffer, Objective(), two) == {0: [1.0], 1: [0.0, 1.0], 2: [0.0]}


def test_the_score_is_a_mean_over_labels_of_several_batches():
    """Over 300 held-out examples, so two batches, with labels for some places only."""
    torch.manual_seed(0)
    model = nn.Conv1d(2, 3, 1)
    x, y = torch.randn(2400, 2, 4), torch.randint(3, (2400, 4))
    y[::16, 1:] = -100
    buffer = Buffer(2400)
    buffer.add({"x": x, "y": y})
    score = measure(model, buffer, Objective())
    assert score.loss == pytest.approx(F.cross_entropy(model(x[::8]), y[::8]).item(), rel=1e-5)
    labels = y[::8] != -100
    hits = (model(x[::8]).argmax(1) == y[::8])[labels]
    assert score.accuracy == pytest.approx(hits.float().mean().item())
    assert score.examples == 300


@pytest.mark.parametrize(("held", "parts"), [(40, 5), (640, 40)])
def test_the_parts_are_examples_or_at_most_64(held, parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    buffer = Buffer(held)
    buffer.add({"x": torch.randn(held, 4), "y": torch.arange(held) % 3})
    losses = measure_parts(model, buffer, Objective())
    each = F.cross_entropy(model.eval()(buffer["x"][::8]), buffer["y"][::8], reduction="none")
    assert losses == pytest.approx(each.view(parts, -1).mean(1).tolist(), rel=1e-5)


@pytest.mark.parametrize("examples", [2, 3, 4, 9, 30])
def test_a_fall_is_one_beyond_two_deviations_of_students_t(examples):
    scipy = pytest.importorskip("scipy.stats")
    torch.manual_seed(0)
    for shift in (0.5, 0.7, 1.0, 2.0):
        before, after = torch.randn(examples) + shift, torch.zeros(examples)
        limit = 2 * scipy.t.std(examples - 1)
        statistic = scipy.ttest_rel(before, after).statistic
        assert fell(before.tolist(), after.tolist()) == (statistic > limit)


def test_the_mean_overlap_is_that_of_held_out_images():
    """The network returns its input. One pixel of the first image has no label, and the third has no label at all.

    First image: class 0 is right in 1 of 1 pixels, class 1 in 2 of 2. Second image: class 0 has 1 pixel and is
    predicted elsewhere, class 1 has 3, is predicted for 2 and right for 1.
    """
    predicted = torch.tensor([[0, 1, 1, 2], [1, 1, 0, 2], [0, 0, 0, 0]])
    labels = torch.tensor([[0, 1, 1, -100], [1, 0, 1, 1], [-100] * 4])
    x, y = torch.zeros(24, 3, 2, 2), torch.zeros(24, 2, 2, dtype=torch.long)
    x[::8] = F.one_hot(predicted.view(3, 2, 2), 3).movedim(3, 1).float()
    y[::8] = labels.view(3, 2, 2)
    buffer = Buffer(24)
    buffer.add({"x": x, "y": y})
    model = nn.Conv2d(3, 3, 1, bias=False)
    model.weight.data = torch.eye(3)[:, :, None, None]
    assert mean_overlap(model, buffer, Objective()) == pytest.approx((1 + (0 + 1 / 4) / 2) / 2)


def test_examples_without_labelled_pixels_have_no_overlap():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    assert mean_overlap(model, filled(shape=(3, 2, 2)), Objective()) is None


def test_targets_that_are_no_classes_have_no_accuracy():
    model, buffer = nn.Linear(4, 1), Buffer(16)
    x = torch.rand(16, 4)
    buffer.add({"x": x, "y": x.sum(1, keepdim=True)})
    score = measure(model, buffer, Objective(loss=F.mse_loss))
    assert score.accuracy is None
    assert score.loss == pytest.approx(F.mse_loss(model(x[::8]), x[::8].sum(1, keepdim=True)).item())
    assert str(Score(0.5, None, 2)) == "loss 0.500"


def test_modes_and_statistics_stay():
    model = normalised()
    model.body.eval()
    statistics = [buffer.clone() for buffer in model.buffers()]
    measure(model, filled(shape=(16,), classes=4), Objective())
    assert [model.training, model.body[1].training, model.neck[1].training] == [True, False, True]
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), statistics, strict=True))


@pytest.fixture
def autocast_on_any_cpu():
    """Switch oneDNN on again: without instructions for bfloat16, torch switches it off for the whole process."""
    enabled = torch.backends.mkldnn.enabled
    yield
    torch._C._set_mkldnn_enabled(enabled)


@pytest.mark.usefixtures("autocast_on_any_cpu")
def test_a_users_autocast_keeps_no_weights_of_a_measurement():
    model, shape = make("mlp")
    x, y = next(shifting(shape))
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad(), evaluating(model):
            first = model(x)
        with torch.no_grad():
            model.fc3.weight.mul_(3)
        logits = model(x)
        F.cross_entropy(logits, y).backward()
    assert not torch.equal(logits, first)
    assert model.fc3.weight.grad is not None


def test_held_out_examples_take_part_in_no_step():
    model, shape = make("mlp")
    drawn = set()

    def augment(x):
        if torch.is_grad_enabled() and model.training and len(x) == 10:  # not the trial, which has two examples
            drawn.update(map(tuple, x.tolist()))
        return x

    fpf = FPF(model, capacity=40, batch=10, augment=augment)
    for x, y in list(shifting(shape))[:5]:
        fpf.observe(x[:8], y[:8])
    rows = [tuple(row) for row in fpf.buffer["x"].tolist()]
    fpf.finish()
    assert len(set(rows)) == 40
    assert drawn == {row for slot, row in enumerate(rows) if slot % 8}
