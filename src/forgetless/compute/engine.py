"""Runs the pieces of a run on its device: as they are written, or captured into CUDA graphs and replayed.

The only file that knows of graphs, CUDA streams and precision. What is captured takes no arguments and gives nothing
back: it reads and writes tensors that stay where they are (weights, buffer, counters on the device), so that a replay
does what a call would have done. Every run has an engine of its own, with its own CUDA stream, memory and random
numbers; runs in turns on one GPU therefore end as each would alone.
"""

from __future__ import annotations

import gc
import platform
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from forgetless.compute import kernels
from forgetless.compute.modules import compiled, hooked, unwrap
from forgetless.config.catalogue import PRECISIONS
from forgetless.config.checks import check_one_of

T = TypeVar("T")
AHEAD = 2  # calls of ``active`` whose work may wait on the GPU before a run is not ``ready`` for more


class Engine:
    """How one run computes.

    precision      fp32; tf32: matrix products and convolutions with 10 bits of mantissa (GPU); bf16: them in bfloat16,
                   weights and sums in fp32
    capture        into CUDA graphs; False: everything is called as written
    deterministic  only kernels of cuDNN that give the same bits each time
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
        self.deterministic = deterministic
        self.cuda = self.device.type == "cuda"
        self._index = torch.cuda.current_device() if self.cuda and self.device.index is None else self.device.index
        # On a CPU it helps bf16 and not fp32: ResNet-18 on a Xeon with AMX, 343 → 210 ms a step and 542 → 574.
        self.channels_last = self.cuda or precision == "bf16"
        self.captures = self.cuda and capture
        self._stream = torch.cuda.Stream(self.device) if self.cuda else None
        self._pool = torch.cuda.graph_pool_handle() if self.captures else None
        self._anchor: torch.cuda.CUDAGraph | None = None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._called: dict[Hashable, int] = {}  # how often, before it was captured
        self._before = 1  # calls before a capture
        self._kept: dict[Hashable, Any] = {}
        self._generators: list[torch.Generator] = []
        self._queued: deque[torch.cuda.Event] = deque(maxlen=AHEAD)
        self._waits = self._inside = False
        self._onednn = True
        self._held: dict[str, Tensor] = {}
        self._made: tuple[Tensor, dict[int, Tensor]] | None = None
        if self.cuda:
            wake_autograd(self.device)
        with self._fork():
            self.seed(seed)
            self._random = self._global_states()

    def seed(self, seed: int) -> None:
        """Start torch's global random numbers from here: the CPU's and those of this run's device, no other's."""
        torch.default_generator.manual_seed(seed)
        if self.cuda:
            torch.cuda.default_generators[self._index].manual_seed(seed)

    def generator(self, seed: int) -> torch.Generator:
        """Random numbers of this run, on its device; what is captured may draw from them."""
        made = torch.Generator(self.device).manual_seed(seed)
        self._generators.append(made)
        return made

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within: this run's CUDA stream, precision and global random numbers; on leaving, what was before."""
        self._waits = False
        switches = _numbers(self.precision, self.deterministic) if self.cuda else _products(onednn=self._onednn)
        with self._fork(), switches:
            self._set_global_states(self._random)
            self._inside = True
            try:
                if self._stream is not None:  # what the caller has queued, weights it loaded say, comes first
                    self._stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
                    yield
                    if self._stream is not None:
                        self._queued.append(self._stream.record_event())
            finally:
                self._random, self._inside = self._global_states(), False

    def suit(self, network: nn.Module) -> None:
        """From the next call of ``active`` on, compute as suits this network.

        On Arm torch gives the products of an MLP to oneDNN, whose start takes longer than they do (docs/speed.md).
        Nothing is compiled while FLOPs are counted, in the first call, nor in a capture: a compiled network is called
        once more.
        """
        small = hasattr(unwrap(network), "backpropagate") and self.precision == "fp32"
        self._onednn = not (small and platform.machine() in ("aarch64", "arm64"))
        self._before = 2 if compiled(network) else 1

    def call(self, key: Hashable, function: Callable[[], object]) -> None:
        """Run ``function``: the first time with this key as it is, from then on as a replay of a captured call."""
        graph = self._graphs.get(key)
        called = self._called.get(key, 0)
        if graph is None and (not self.captures or called < self._before):
            self._called[key] = called + 1
            function()
            self._made = None
            return
        if graph is None:
            # The pool of memory must not be left without a graph by ``forget``: this one, of nothing, stays.
            self._anchor = self._anchor or self._capture(lambda: torch.zeros(1, device=self.device))
            graph = self._graphs[key] = self._capture(function)
            self._made = None
        graph.replay()

    def forget(self, phase: str) -> None:
        """Let go of what was captured under keys that begin with ``phase``: what it reads is about to be replaced."""
        self.synchronize()
        for key in [key for key in self._called if isinstance(key, tuple) and key[0] == phase]:
            del self._called[key]
            self._graphs.pop(key, None)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gave for this key the first time: tensors that something captured reads or writes."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept

    def plain_mlp(self, network: nn.Module, x: Tensor) -> Any:
        """The network, if it is an MLP whose shorter ways give the same: not in bf16, not changed by anyone."""
        if self.precision == "bf16" or not hasattr(type(network), "backpropagate") or x.dtype != torch.float32:
            return None
        return network if self.keep(("plain", id(network)), lambda: network.plain) else None

    def without_graph(self, network: nn.Module, x: Tensor) -> Any:
        """The same, if its backpropagation may be written out: on a GPU the kernel of cross-entropy takes a graph."""
        return None if self.cuda else self.plain_mlp(network, x)

    def forward(self, network: nn.Module, x: Tensor, **arguments: Any) -> Tensor:
        """``network(x)`` in this precision. In bf16 all weights are cast at once, not one kernel each."""
        if self.precision != "bf16":
            if torch.is_grad_enabled() and (mlp := self.plain_mlp(network, x)) is not None:
                quick: Tensor = mlp.quick(x)
                return quick
            logits: Tensor = network(x, **arguments)
            return logits
        learned, fixed = _weights(network)
        cast = {name: self._held[name] for name in fixed if name in self._held}
        fixed = {name: weight for name, weight in fixed.items() if name not in cast}
        copies = _Cast.apply(*learned.values()) if learned else ()  # type: ignore[no-untyped-call]
        cast |= zip(learned, copies, strict=True)
        if fixed:
            with torch.no_grad():
                cast |= zip(fixed, _cast(list(fixed.values()), torch.bfloat16), strict=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            output: Tensor = functional_call(network, cast, (x,), arguments).float()
        if output.requires_grad and kernels.serve(output) and _by_name_alone(network):
            self._made = output, dict(zip(map(id, learned.values()), copies, strict=True))
        return output

    def sources(self, output: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """For each parameter what the gradient of an output is to be taken with respect to: itself, or a copy.

        A copy in bf16, if the last ``forward`` gave this very output: its gradient is in bf16 too, which ``descend``
        takes as it is. Not of a user's own modules, which might use a parameter in other ways too.
        """
        made, copies = self._made or (None, {})
        found = copies if output is made else {}
        return [copy if (copy := found.get(id(p), p)).stride() == p.stride() else p for p in parameters]

    @contextmanager
    def holding(self, network: nn.Module) -> Iterator[None]:
        """Within, the weights that take no gradients stay as they are, so that they are cast once."""
        fixed = _weights(network)[1] if self.precision == "bf16" else {}
        if fixed:
            self._held = self.keep(
                ("held", id(network), *fixed),
                lambda: {name: torch.empty_like(weight, dtype=torch.bfloat16) for name, weight in fixed.items()},
            )
            with torch.no_grad():
                torch._foreach_copy_(list(self._held.values()), list(fixed.values()))
        try:
            yield
        finally:
            self._held = {}

    def synchronize(self) -> None:
        """Wait until all that is queued is done."""
        if self._stream is not None:
            self._stream.synchronize()

    def will_wait(self) -> bool:
        """Say that the host is about to read from the device; whether that means waiting."""
        self._waits = self.cuda
        return self.cuda

    def ready(self) -> bool:
        """Whether more work can be queued, or after ``will_wait``, whether everything queued is done."""
        while self._queued and self._queued[0].query():
            self._queued.popleft()
        return len(self._queued) < (1 if self._waits else AHEAD)

    def state_dict(self) -> dict[str, Any]:
        """Where all random numbers of the run are."""
        random = self._global_states() if self._inside else self._random
        return {"random": list(random), "generators": [one.get_state() for one in self._generators]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Within ``active``: go on with these random numbers."""
        if len(state["random"]) != len(self._random) or len(state["generators"]) != len(self._generators):
            raise ValueError(
                f"the state's random numbers were not drawn on a {self.device.type} device, or by another version of "
                "forgetless; go on there, or begin anew"
            )
        self._set_global_states([one.cpu() for one in state["random"]])
        for generator, numbers in zip(self._generators, state["generators"], strict=True):
            generator.set_state(numbers.cpu())

    def to_dict(self) -> dict[str, Any]:
        """How the run was computed, for its record."""
        made: dict[str, Any] = {"precision": self.precision, "captured": self.captures}
        if self.cuda:
            made["peak_megabytes"] = torch.cuda.max_memory_allocated(self.device) // 2**20  # of the whole process
        else:
            made["threads"] = torch.get_num_threads()
        return made

    def _capture(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        collects = gc.isenabled()
        gc.disable()  # a tensor or graph freed in here would be freed in the graph
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                function()
            except BaseException:
                with suppress(RuntimeError):  # it would say only that the capture was broken off, not why
                    graph.capture_end()
                raise
            graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph

    @contextmanager
    def _fork(self) -> Iterator[None]:
        before = self._global_states()
        try:
            yield
        finally:
            self._set_global_states(before)

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
    """Something small first for autograd's own thread: torch warns where that begins with a matrix product."""
    one = torch.ones(1, device=device, requires_grad=True)
    torch.autograd.grad(2 * one, one)


def find_device(name: torch.device | str) -> torch.device:
    """The device of this name; an error if there is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device is {name!r}; it must be cpu, cuda, cuda:1, …") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {str(name)!r}, but torch sees {torch.cuda.device_count()} GPUs here; use cpu")
    return device


def has_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16; without them oneDNN computes in it too, slower than in fp32."""
    if platform.machine() in ("x86_64", "AMD64"):
        known = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # the second not in every version of torch
        return any(getattr(torch.cpu, name, lambda: False)() for name in known)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def check_precision(precision: str, device: torch.device) -> None:
    """An error unless this device computes in this precision at speed."""
    check_one_of("precision", precision, PRECISIONS)
    if device.type != "cpu":
        return
    if precision == "tf32":
        raise ValueError("precision is 'tf32', which is for GPUs; on a CPU use fp32, or bf16 where it has instructions")
    if precision == "bf16" and not has_bf16():
        raise ValueError("precision is 'bf16', but this CPU has no instructions for it; use fp32")


@contextmanager
def _products(*, onednn: bool) -> Iterator[None]:
    """torch's global switch of the library that a CPU computes with."""
    settings: Any = torch.backends.mkldnn
    before = settings.enabled
    settings.enabled = before and onednn
    try:
        yield
    finally:
        settings.enabled = before


@contextmanager
def _numbers(precision: str, deterministic: bool) -> Iterator[None]:
    """torch's global switches of precision and determinism on CUDA."""
    cudnn = torch.backends.cudnn
    before = (cudnn.benchmark, cudnn.deterministic, _get_tf32())
    _set_tf32(("ieee", "ieee") if precision == "fp32" else ("tf32", "tf32"))
    # On an H200 cuDNN's heuristics chose as well as its benchmark did, which takes seconds for every new shape.
    cudnn.benchmark, cudnn.deterministic = False, deterministic
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before[:2]
        _set_tf32(before[2])


def _get_tf32() -> tuple[Any, Any]:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32  # before torch 2.9


def _set_tf32(values: tuple[Any, Any]) -> None:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = values  # type: ignore[attr-defined]
    else:
        allowed = [value == "tf32" if isinstance(value, str) else value for value in values]
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed


def _weights(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What is computed with in bf16: the matrices and kernels, those that take gradients and those that do not."""
    weights = [(n, p) for n, p in network.named_parameters() if p.ndim > 1 and p.dtype == torch.float32]
    return {n: p for n, p in weights if p.requires_grad}, {n: p for n, p in weights if not p.requires_grad}


def _by_name_alone(network: nn.Module) -> bool:
    """Whether a copy put in a parameter's place is all that is used of it: layers of torch and forgetless, no hooks."""
    known = ("torch.nn.", "forgetless.networks.")
    return not any(
        hooked(module) or "forward" in vars(module) or not type(module).__module__.startswith(known)
        for module in unwrap(network).modules()
    ) and not any(parameter._backward_hooks for parameter in network.parameters())


def _cast(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of all in another dtype, in one kernel."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(made, tensors)
    return made


class _Cast(torch.autograd.Function):
    """All weights to bfloat16; backward, all gradients to float32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights = weights  # for their memory format
        return tuple(_cast(list(weights), torch.bfloat16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        made = [torch.empty_like(weight) for weight in ctx.weights]
        torch._foreach_copy_(made, list(gradients))
        return tuple(made)
