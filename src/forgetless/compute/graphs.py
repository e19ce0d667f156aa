"""Capture functions into CUDA graphs and replay them."""

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import final

import torch


@final
class Graphs:
    """The CUDA graphs of one run, by key. They share one pool of memory.

    A captured function takes no arguments and returns nothing. It reads and writes tensors that stay in place (weights,
    buffer, counters on the GPU), so that a replay has the effect of a call.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self.calls_before_capture = 1
        self._device, self._generators = device, generators  # the list may grow
        self._pool = torch.cuda.graph_pool_handle()
        self._anchor: torch.cuda.CUDAGraph | None = None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._calls: dict[Hashable, int] = {}  # calls made before the capture

    def call(self, key: Hashable, function: Callable[[], object]) -> None:
        """Run ``function``: as a plain call at first, then captured, then as a replay of the graph."""
        calls = self._calls.get(key, 0)
        if calls < self.calls_before_capture:
            self._calls[key] = calls + 1
            function()
            return
        if key not in self._graphs:
            # ``discard`` must not leave the memory pool without a graph, so this empty one stays.
            self._anchor = self._anchor or self._capture(lambda: torch.zeros(1, device=self._device))
            self._graphs[key] = self._capture(function)
        self._graphs[key].replay()

    def has(self, key: Hashable) -> bool:
        """Return whether ``call`` with this key is a replay."""
        return key in self._graphs

    def discard(self, phase: str) -> None:
        """Discard the graphs whose keys are tuples that begin with ``phase``."""
        for key in [key for key in self._calls if isinstance(key, tuple) and key[0] == phase]:
            del self._calls[key]
            self._graphs.pop(key, None)

    def _capture(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Return the graph of one call of ``function``."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        collects = gc.isenabled()
        gc.disable()  # a tensor freed during the capture would be freed in every replay
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                function()
            except BaseException:
                with suppress(RuntimeError):  # it would only say that the capture failed, not why
                    graph.capture_end()
                raise
            graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph
