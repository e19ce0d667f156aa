import functools
import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from forgetless import Finetune, networks, train
from forgetless.experiments import lanes as module
from forgetless.experiments.lanes import Crash, Postponed, interleave
from forgetless.methods.derpp import DERpp
from forgetless.methods.er import ER
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed
from forgetless.training.events import Ended, Stepped
from helpers import image_stream, on_gpu

STREAM = image_stream()
K_FPF = Finetune.k_fpf(6, steps=5, batch=8, groups=("block1", "fc"))
WAYS = [(ER, 0, None), (ER, 1, None), (DERpp, 0, None), (SGD, 0, K_FPF), (SGD, 1, None)]


def start(way, device):
    method, seed, finetune = way
    network = with_seed(lambda: networks.resnet18(4, width=4), seed)
    return train(
        STREAM, method(), network, epochs=1, batch=8, lr=0.05, buffer=24, seed=seed, finetune=finetune, device=device,
        deterministic=True,
    )  # fmt: skip


def result(events):
    return next(event.result for event in events if isinstance(event, Ended))


@functools.cache
def alone(way, device):
    return result(start(way, device))


@pytest.mark.parametrize("lanes", [3, 8])
def test_runs_in_turns_end_as_each_does_alone(lanes, device):
    found = {}
    for number, event in interleave([lambda way=way: start(way, device) for way in WAYS], lanes):
        if isinstance(event, Ended):
            found[number] = event.result
    assert sorted(found) == list(range(5))
    for number, way in enumerate(WAYS):
        other = alone(way, device)
        assert other.accuracy_matrix == found[number].accuracy_matrix
        assert other.losses == found[number].losses
        for a, b in zip(other.network.parameters(), found[number].network.parameters(), strict=True):
            assert torch.equal(a, b)


class Small:
    """A device with room for a number of runs, which take it at their second step."""

    def __init__(self, room):
        self.room, self.held, self.most, self.started = room, set(), 0, []

    def run(self, number):
        self.started.append(number)
        return _OnSmall(self, number)


class _OnSmall(Iterator):
    def __init__(self, device, number):
        self.engine = SimpleNamespace(device=torch.device("cpu"), cuda=False, ready=lambda: True)
        self.events = self._events(device, number)

    def _events(self, device, number):
        yield Stepped(1, 1, 1)
        if len(device.held) == device.room:
            raise torch.cuda.OutOfMemoryError("no room")
        device.held.add(number)
        device.most = max(device.most, len(device.held))
        yield Stepped(2, 1, 1)
        yield Stepped(3, 1, 1)
        device.held.remove(number)
        yield Ended(number)

    def __next__(self):
        return next(self.events)


def test_runs_start_as_lanes_become_free():
    device = Small(room=2)
    events = list(interleave([lambda number=number: device.run(number) for number in range(5)], 2))
    assert device.most == 2
    assert device.started == sorted(number for number, event in events if isinstance(event, Ended)) == list(range(5))


def test_without_memory_a_run_starts_again_after_another_ends():
    device = Small(room=2)
    found = list(interleave([lambda number=number: device.run(number) for number in range(5)], 4))
    assert sorted(event.result for _, event in found if isinstance(event, Ended)) == [0, 1, 2, 3, 4]
    assert not any(isinstance(event, Crash) for _, event in found)
    postponed = [number for number, event in found if isinstance(event, Postponed)]
    assert postponed == [2, 3]
    assert device.started == [0, 1, 2, 3, 2, 3, 4]  # no more than two at a time from then on


@on_gpu
def test_runs_too_large_for_one_gpu_together_all_end():
    stream = image_stream(per_task=256, size=32)

    def big(seed):
        network = with_seed(lambda: networks.resnet18(4, width=32), seed)
        return train(
            stream, ER(), network, epochs=2, batch=64, lr=0.05, buffer=64, seed=seed, device="cuda", deterministic=True
        )

    def megabytes():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() / 2**20

    before = megabytes()
    torch.cuda.reset_peak_memory_stats()
    alone = [result(big(0)).losses[0]]
    each = torch.cuda.max_memory_reserved() / 2**20 - before
    alone += [result(big(seed)).losses[0] for seed in range(1, 6)]
    total = torch.cuda.get_device_properties(0).total_memory / 2**20
    try:
        torch.cuda.set_per_process_memory_fraction((megabytes() + 2.5 * each) / total)
        events = list(interleave([lambda seed=seed: big(seed) for seed in range(6)], 6))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any(isinstance(event, Postponed) for _, event in events)
    ended = {number: event.result for number, event in events if isinstance(event, Ended)}
    for number in range(6):  # where memory is short cuDNN may take other kernels, so not bit for bit
        assert ended[number].losses[0] == pytest.approx(alone[number], rel=1e-3)


def test_a_start_that_ends_an_iteration_fails_alone():
    def careless():
        return next(iter([]))

    found = dict(interleave([careless, lambda: start(WAYS[0], "cpu")], isolate=True))
    assert isinstance(found[0], Crash)
    assert isinstance(found[0].error, StopIteration)
    assert isinstance(found[1], Ended)


def test_a_closed_run_and_an_empty_start_are_over():
    seen = []
    run = start(WAYS[0], "cpu")
    for number, event in interleave([lambda: run, lambda: None, lambda: start(WAYS[0], "cpu")], 3):
        seen.append((number, type(event)))
        if number == 0:
            run.close()
    assert [number for number, _ in seen].count(0) == 1
    assert 1 not in {number for number, _ in seen}
    assert seen[-1] == (2, Ended)


def test_a_run_too_large_alone_is_tried_twice():
    found = [type(event) for _, event in interleave([lambda: Small(room=0).run(0)], 4, isolate=True)]
    assert found == [Stepped, Postponed, Stepped, Crash]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        list(interleave([lambda: Small(room=0).run(0)], 4))


def test_a_run_too_large_alone_leaves_lanes_to_others():
    def large():
        raise torch.cuda.OutOfMemoryError("no room")

    device = Small(room=8)
    found = list(
        interleave([large, *(lambda number=number: device.run(number) for number in range(8))], 4, isolate=True)
    )
    assert [number for number, event in found if isinstance(event, Crash)] == [0]
    assert device.most == 4


def test_a_crash_keeps_no_frames_of_its_error():
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        made = Crash.from_error(error)
    assert "inner" in made.trace
    assert made.error.__traceback__ is made.error.__cause__.__traceback__ is None


def test_memory_of_earlier_runs_does_not_end_a_run(monkeypatch):
    device = Small(room=1)
    device.held.add("cache")
    monkeypatch.setattr(module, "_release_memory", lambda _, now=False: device.held.discard("cache") if now else None)
    found = [type(event) for _, event in interleave([lambda: device.run(0)], 4)]
    assert found == [Stepped, Postponed, Stepped, Stepped, Stepped, Ended]
