"""Build the stream, the method and the network of a run from its settings, and start the run."""

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from forgetless.config import catalogue
from forgetless.data.stream import Stream
from forgetless.experiments.settings import Settings, check_options
from forgetless.methods import Method
from forgetless.networks.seed import with_seed
from forgetless.training.contract import check
from forgetless.training.loop import Run, train
from forgetless.training.state import is_built_in


def build_stream(settings: Settings) -> Stream:
    """Return the stream of a run, with its validation split as the test set if the settings ask for it."""
    make = catalogue.load("stream", settings.stream)
    if settings.order is not None and not _takes(make, "order"):
        raise ValueError(f"order is {settings.order}, but stream {settings.stream!r} takes none")
    stream = make if isinstance(make, Stream) else _call("stream", settings.stream, make, {"order": settings.order})
    if not isinstance(stream, Stream):
        raise ValueError(f"stream {settings.stream!r} returns a {type(stream).__name__}; it must return a Stream")
    return stream.validation() if settings.validation else stream


def stream_key(settings: Settings) -> tuple[object, ...]:
    """Return a key that is the same for runs that read the same stream on the same device."""
    return settings.stream, settings.order, settings.validation, settings.device


def build_method(settings: Settings) -> Method:
    """Return the method of a run with its own settings."""
    kind = catalogue.load("method", settings.method)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"method {settings.method!r} is not a subclass of forgetless.methods.Method")
    options = check_options(settings.method, settings.options)
    try:
        return kind(**options)
    except TypeError as error:  # a setting has no value, or an abstract method is not implemented
        raise ValueError(f"{settings.method} cannot be made: {error}") from error


def build_network(settings: Settings, stream: Stream) -> nn.Module:
    """Return a new network of the run's seed, sized for the stream."""
    make = catalogue.load("network", settings.network)
    sizes = {"classes": stream.classes, "inputs": math.prod(stream.shape), "channels": stream.shape[0]}
    network = with_seed(lambda: _call("network", settings.network, make, sizes), settings.seed)
    if not isinstance(network, nn.Module):
        raise ValueError(f"network {settings.network!r} returns a {type(network).__name__}; it must return a Module")
    return network


def build_run(
    settings: Settings, stream: Stream | None = None, *, eager: bool = False, state: Mapping[str, Any] | None = None
) -> Run:
    """Return a run that is ready to start, or to resume from a state.

    With ``eager``, a GPU calls every step instead of replaying CUDA graphs. A user's method that breaks the contract is
    always called.
    """
    method = build_method(settings)
    stream = build_stream(settings) if stream is None else stream
    network = build_network(settings, stream)
    on_gpu = settings.device.startswith("cuda")
    capture = on_gpu and not eager and is_built_in(network) and (is_built_in(method) or _keeps_contract(settings))
    return train(stream, method, network, settings, capture=capture, state=state)


def _keeps_contract(settings: Settings) -> bool:
    """Return whether a user's method passes ``forgetless.check``; warn if it does not."""
    try:
        check(lambda: build_method(settings))
        return True
    except Exception as error:  # a user's method may fail on the contract's small stream in any way
        warnings.warn(f"{settings.method} is not captured into CUDA graphs, which is slower: {error}", stacklevel=3)
        return False


def _call(kind: str, name: str, make: Any, offered: Mapping[str, Any]) -> Any:
    """Return the result of ``make``, called with those of ``offered`` that it takes."""
    if not callable(make) or isinstance(make, nn.Module):
        raise ValueError(f"{kind} {name!r} is a {type(make).__name__}; it must be a function that returns one")
    given = {name: value for name, value in offered.items() if _takes(make, name) and value is not None}
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        raise ValueError(f"{kind} {name!r} is called with {', '.join(given) or 'nothing'}: {error}") from None
    return make(**given)


def _takes(make: Any, name: str) -> bool:
    """Return whether ``make`` is a function with a parameter of this name."""
    return callable(make) and name in inspect.signature(make).parameters
