"""Run one training on its device: as written, or captured into CUDA graphs and replayed.

Every run has its own engine with its own CUDA stream, memory and random numbers. Runs that take turns on one GPU
therefore end exactly as each would alone.
"""

import platform
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from forgetless.compute.graphs import Graphs
from forgetless.compute.precision import Bf16Weights, check_precision, cuda_switches, switched

T = TypeVar("T")
AHEAD = 2  # calls of ``active`` whose work may wait on the GPU before a run is no longer ``ready``


@final
class Engine:
    """How one run computes.

    In ``tf32``, matrix products and convolutions have 10 bits of mantissa; in ``bf16`` they are in bfloat16, and
    weights and sums in fp32. With ``deterministic``, cuDNN uses only kernels that return the same bits each time. The
    global random numbers come from ``seed``.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        precision: str = "fp32",
        capture: bool = True,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        self.device = find_device(device)
        check_precision(precision, self.device)
        self.precision = precision
        self.cuda = self.device.type == "cuda"
        self._index = torch.cuda.current_device() if self.cuda and self.device.index is None else self.device.index
        # On a CPU it helps only bf16: ResNet-18 on a Xeon with AMX, bf16 343 → 210 ms per step, fp32 542 → 574 ms.
        self.channels_last = self.cuda or precision == "bf16"
        self.captures = self.cuda and capture
        self._stream = torch.cuda.Stream(self.device) if self.cuda else None
        self._generators: list[torch.Generator] = []
        self._graphs = Graphs(self.device, self._generators) if self.captures else None
        self._persistent: dict[Hashable, Any] = {}
        self._bf16 = Bf16Weights(self.persistent) if precision == "bf16" else None
        self._queued: deque[torch.cuda.Event] = deque(maxlen=AHEAD)
        self._waits = self._inside = False
        self._switches = cuda_switches(precision, deterministic=deterministic) if self.cuda else []
        if self.cuda:
            wake_autograd(self.device)
        with self._fork():
            self.seed(seed)
            self._random = self._global_states()

    def seed(self, seed: int) -> None:
        """Seed torch's global random numbers of the CPU and of this run's device, and of no other device."""
        torch.default_generator.manual_seed(seed)
        if self.cuda:
            torch.cuda.default_generators[self._index].manual_seed(seed)

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator of this run on its device. Captured functions may draw from it."""
        generator = torch.Generator(self.device).manual_seed(seed)
        self._generators.append(generator)
        return generator

    def adapt(self, *, compiled: bool, small_products: bool) -> None:
        """Adapt to a network, from the next use of ``active`` on.

        A compiled network is called twice before a capture: nothing is compiled while FLOPs are counted, in the first
        call, nor during the capture. On Arm, small products, as an MLP's, are computed without oneDNN, whose start
        takes longer than they do. That saves 19 to 29 % of a step of the MLP at batch 10, and 10 to 17 % at batch 128
        (ablation-arm.json).
        """
        if platform.machine() in ("aarch64", "arm64") and small_products and not self.cuda and self.precision == "fp32":
            self._switches = [(torch.backends.mkldnn, "enabled", False)]
        if self._graphs is not None:
            self._graphs.calls_before_capture = 2 if compiled else 1

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, use this run's CUDA stream, precision and global random numbers; restore the old ones on leaving."""
        self._waits = False
        with self._fork(), switched(self._switches):
            self._set_global_states(self._random)
            self._inside = True
            try:
                if self._stream is None:
                    yield
                else:
                    self._stream.wait_stream(torch.cuda.current_stream(self.device))  # the caller's queued work
                    with torch.cuda.stream(self._stream):
                        yield
                        self._queued.append(self._stream.record_event())
            finally:
                self._random, self._inside = self._global_states(), False

    def call(self, key: Hashable, function: Callable[[], object]) -> None:
        """Run ``function``: as written, or on a GPU that captures from the second call with this key as a replay."""
        if self._graphs is None:
            function()
        else:
            self._graphs.call(key, function)

    def replays(self, key: Hashable) -> bool:
        """Return whether ``call`` with this key replays a graph."""
        return self._graphs is not None and self._graphs.has(key)

    def discard_graphs(self, phase: str) -> None:
        """Discard the graphs whose keys begin with ``phase``, because what they read is about to be replaced."""
        self.synchronize()
        if self._graphs is not None:
            self._graphs.discard(phase)

    def persistent(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return what ``build`` returned for this key the first time, such as tensors that a captured step uses."""
        if key not in self._persistent:
            self._persistent[key] = build()
        value: T = self._persistent[key]
        return value

    def forward(self, network: nn.Module, x: Tensor, **arguments: Any) -> Tensor:
        """Return ``network(x, **arguments)`` in this run's precision."""
        if self._bf16 is not None:
            return self._bf16.call(network, x, **arguments)
        logits: Tensor = network(x, **arguments)
        return logits

    def others_cast_once(self, network: nn.Module, names: Collection[str]) -> AbstractContextManager[None]:
        """In bf16, cast the weights that are not in ``names`` once for all calls within; they must not change."""
        return nullcontext() if self._bf16 is None else self._bf16.others_cast_once(network, names)

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def will_wait(self) -> bool:
        """Announce a GPU-to-CPU sync, and return whether there will be one."""
        self._waits = self.cuda
        return self.cuda

    def ready(self) -> bool:
        """Return whether more work can be queued or, after ``will_wait``, whether all queued work is done."""
        while self._queued and self._queued[0].query():
            self._queued.popleft()
        return len(self._queued) < (1 if self._waits else AHEAD)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all random numbers of the run."""
        random = self._global_states() if self._inside else self._random
        return {"random": list(random), "generators": [generator.get_state() for generator in self._generators]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the random numbers of ``state_dict``; call it within ``active``."""
        if len(state["random"]) != len(self._random) or len(state["generators"]) != len(self._generators):
            origin = f"a {self.device.type} device, or by another version of forgetless"
            raise ValueError(f"the state's random numbers were not drawn on {origin}; resume there, or start again")
        self._set_global_states([numbers.cpu() for numbers in state["random"]])
        for generator, numbers in zip(self._generators, state["generators"], strict=True):
            generator.set_state(numbers.cpu())

    def to_dict(self) -> dict[str, Any]:
        """Return how the run was computed, for its record."""
        computed = {"precision": self.precision, "captured": self.captures}
        if self.cuda:  # the peak of the whole process
            return computed | {"peak_megabytes": torch.cuda.max_memory_allocated(self.device) // 2**20}
        return computed | {"threads": torch.get_num_threads()}

    def _fork(self) -> AbstractContextManager[None]:
        """Restore the global random numbers on leaving."""
        return torch.random.fork_rng(devices=[self.device] if self.cuda else [])

    def _global_states(self) -> tuple[Tensor, ...]:
        states = [torch.get_rng_state()]
        if self.cuda:
            states.append(torch.cuda.get_rng_state(self.device))
        return tuple(states)

    def _set_global_states(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.cuda:
            torch.cuda.set_rng_state(states[1], self.device)


def wake_autograd(device: torch.device) -> None:
    """Start autograd's thread with a small product: torch warns if that thread starts with a matrix product."""
    number = torch.ones(1, device=device, requires_grad=True)
    torch.autograd.grad(2 * number, number)


def find_device(name: torch.device | str) -> torch.device:
    """Return the device of this name; raise an error if this machine has none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device is {name!r}; it must be cpu, cuda, cuda:1, …") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {str(name)!r}, but torch sees {torch.cuda.device_count()} GPUs here; use cpu")
    return device
