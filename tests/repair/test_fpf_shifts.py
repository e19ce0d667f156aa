import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from loops import make, run, shifting
from torch import nn

from forgetless import FPF, networks

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import own_loop  # the digits stream


def test_shifts_of_the_digits_are_detected_without_false_ones():
    x, y, *_ = own_loop.digits()
    steps = [-(-int((y // 2 == task).sum()) // own_loop.BATCH) * own_loop.EPOCHS for task in range(5)]
    true = [sum(steps[: task + 1]) for task in range(4)]
    for seed in range(100, 105):
        torch.manual_seed(seed)
        model = networks.mlp(10, inputs=64)
        fpf = FPF(model, capacity=200, steps=1, seed=seed)
        own_loop.train(model, own_loop.stream(x, y, seed), fpf)
        assert len(fpf.shifts) == 4, f"seed {seed}: {fpf.shifts} for {true}"
        late = [detected - shift for detected, shift in zip(fpf.shifts, true, strict=True)]
        assert all(abs(steps) <= fpf.tracking.window for steps in late)


def test_tasks_shorter_than_a_window_are_compared_too():
    model, shape = make("mlp")
    fpf = FPF(model, 64, steps=2, window=1000)
    run(model, shape, fpf, announced=True)
    assert fpf.profile().comparisons == 1
    assert fpf.finetunings == 1


def test_a_boundary_before_the_first_task_changes_nothing():
    outcomes = []
    for first in (True, False):
        model, shape = make("mlp")
        fpf = FPF(model, 64, steps=2, detect=False)
        for step, (x, y) in enumerate(shifting(shape)):
            if step == 60 or (first and step == 0):
                fpf.boundary()
            fpf.observe(x, y)
        outcomes.append((fpf.shifts, fpf._repairer.tracker.task))
    assert outcomes == [([60], 2), ([60], 2)]


def test_weights_loaded_later_are_no_change():
    model = nn.Linear(4, 2)
    fpf = FPF(model, groups="all", window=1)
    with torch.no_grad():
        model.weight.add_(100.0)
    x, y = torch.rand(4, 4), torch.zeros(4, dtype=torch.int64)
    fpf.observe(x, y)
    assert fpf._repairer.tracker.between_epochs[0].changes.tolist() == [0.0, 0.0]


def test_gradient_accumulation_makes_no_false_shift():
    model, shape = make("mlp")
    fpf = FPF(model, 64, detect=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(shifting(shape, steps=1000), start=1):
        (F.cross_entropy(model(x), y) / 100).backward()
        if step % 100 == 0:
            optimizer.step()
            optimizer.zero_grad()
        fpf.observe(x, y)
        if step == 1000:
            break
    assert fpf.shifts == []


def test_unused_heads_hide_no_shift():
    torch.manual_seed(0)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(6))

        def forward(self, x):
            return self.heads[0](self.body(x).relu())

    model = Heads()
    fpf, optimizer = FPF(model, 30, detect=True), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(400):
        y = torch.randint(2, (16,)) + 2 * (step // 200)
        x = torch.randn(16, 8) + 1.5 * y[:, None]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)
    assert fpf.shifts == [200]
