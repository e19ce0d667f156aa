"""What an FPF keeps between repairs: copies of the weights are in host memory, not on the GPU."""

from collections import deque
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless import FPF
from forgetless.memory.buffer import Buffer
from forgetless.repair import restoring
from forgetless.repair.displacement import displacement_scores
from forgetless.repair.groups import groups
from forgetless.repair.objective import Objective
from forgetless.repair.restoring import copies
from forgetless.repair.tracker import Tracker

WIDTH = 1024


def network(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4)).to(
        device
    )


def train(model, fpf, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.rand(16, 16, generator=generator).to(device)
        y = torch.randint(4, (16,), generator=generator).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        fpf.observe(x, y)


def reachable(thing):
    """Yield the tensors that an object of the library keeps, apart from those of networks."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from reachable(value)
    elif isinstance(thing, list | tuple | set | deque):
        for value in thing:
            yield from reachable(value)
    elif type(thing).__module__.startswith("forgetless") and not isinstance(thing, nn.Module):
        yield from reachable(getattr(thing, "__dict__", ()))


@pytest.fixture
def host(monkeypatch):
    """Collect the tensors in host memory, which on a CPU look like all others."""
    tensors = []
    original = restoring.empty_copy

    def empty_copy(tensor, *, host):
        copy = original(tensor, host=host)
        if host:
            tensors.append(copy)
        return copy

    monkeypatch.setattr(restoring, "empty_copy", empty_copy)
    return tensors


def kept(fpf, host):
    """Return the bytes per parameter that an FPF keeps on the device, and in host memory."""
    in_host = {tensor.data_ptr() for tensor in host}
    tensors = {tensor.data_ptr(): tensor for tensor in reachable(fpf)}
    count = sum(parameter.numel() for parameter in fpf.model.parameters())
    on_device = sum(tensor.nbytes for pointer, tensor in tensors.items() if pointer not in in_host)
    return on_device / count, sum(tensors[pointer].nbytes for pointer in in_host & tensors.keys()) / count


def test_half_a_byte_per_parameter_stays_between_repairs(host):
    model = network()
    fpf = FPF(model, capacity=100, budget=4)
    for steps in (1, 60):
        train(model, fpf, steps)
        on_device, in_host = kept(fpf, host)
        assert on_device < 0.5
        assert in_host == 4  # one copy in float32
    assert fpf.finetunings
    fpf.finish()
    assert kept(fpf, host)[0] < 0.5


def test_a_schedule_offloads_its_snapshots_with_its_buffer(host):
    for device, expected in ((None, 8), ("cpu", 0)):
        model = network()
        fpf = FPF(model, capacity=100, window=5, device=device)
        train(model, fpf, 12)
        on_device, in_host = kept(fpf, host)
        assert in_host == 8 - expected  # the last window, and the first one of the task
        assert expected <= on_device < expected + 0.5


def test_only_trainable_parameters_are_copied(host):
    model = network()
    model[2].requires_grad_(False)
    fpf = FPF(model, capacity=100)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert kept(fpf, host)[1] == 4 * trainable / sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_half_a_byte_per_parameter():
    model = network("cuda")
    model(torch.rand(16, 16, device="cuda")).sum().backward()  # so that gradients and workspaces are allocated
    without = torch.cuda.memory_allocated()
    fpf = FPF(model, capacity=100, budget=4)
    train(model, fpf, 60)
    assert fpf.finetunings
    assert torch.cuda.memory_allocated() - without < 0.5 * sum(p.numel() for p in model.parameters())
    assert all(tensor.is_pinned() for tensor in fpf._repairer._anchor.held.values())


def test_scores_do_not_depend_on_where_the_earlier_weights_are(device):
    model = network(device)
    buffer = Buffer(64, device=device)
    buffer.add({"x": torch.rand(64, 16), "y": torch.arange(64) % 4})
    parameters = dict(model.named_parameters())
    beside, offloaded = copies(parameters), copies(parameters, host=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    scores = [displacement_scores(model, buffer, Objective(), b, groups(model)) for b in (beside, offloaded)]
    assert all(tensor.device.type == "cpu" for tensor in offloaded.values())
    assert scores[0] == scores[1]
    assert all(scores[0].values())


def test_changes_do_not_depend_on_where_snapshots_are(device):
    rows = []
    for host in (False, True):
        model = network(device)
        tracker = Tracker(model, [name for name, _ in model.named_parameters()], host=host)
        tracker.start()
        for _ in range(2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
            tracker.mark()
            tracker.boundary()
        rows.append([row.changes.tolist() for row in (*tracker.between_epochs, *tracker.between_tasks)])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 3


def test_remembering_copies_no_weights(host):
    model = network()
    fpf = FPF(model, capacity=100)
    before = len(host)
    for _ in range(3):
        fpf.remember(torch.rand(16, 16), torch.arange(16) % 4)
    assert len(host) == before
