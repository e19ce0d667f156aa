"""Check the parts of a run against each other before it starts."""

from torch import nn

from forgetless.data.stream import Stream
from forgetless.methods import Method
from forgetless.methods.method import check_declaration
from forgetless.repair.selection import Selection
from forgetless.repair.sensitivity import select
from forgetless.repair.settings import Finetune
from forgetless.training.settings import TrainSettings


def check_parts(stream: Stream, method: Method, network: nn.Module, settings: TrainSettings) -> None:
    """Raise ``ValueError`` for parts that do not fit each other."""
    kinds = {"stream": (stream, Stream), "method": (method, Method), "network": (network, nn.Module)}
    for part, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise ValueError(f"{part} is {given}; it must be an object of the class {kind.__name__}")
    check_declaration(method)
    name, buffer, policy = type(method).__name__, settings.buffer, settings.policy
    if stream.scenario not in method.scenarios:
        raise ValueError(f"{name} is for {method.scenarios[0]}-incremental streams only; {stream.name} is not one")
    if method.memory != "none" and buffer < settings.replay:
        raise ValueError(
            f"buffer is {buffer}, but {settings.replay} examples are drawn at a time (replay); "
            f"it must be {settings.replay} or more"
        )
    if policy != "reservoir" and method.memory in ("balanced", "own"):
        raise ValueError(f"policy is {policy!r}, but {name} fills the buffer in its own way: leave it out")
    if policy != "reservoir" and method.memory == "none" and settings.finetune is None:
        raise ValueError(f"policy is {policy!r}, but neither {name} nor a finetuning uses a buffer: leave it out")
    if settings.finetune is not None:
        _check_finetune(settings.finetune, buffer, stream, method)


def _check_finetune(finetune: Finetune, buffer: int, stream: Stream, method: Method) -> None:
    name = type(method).__name__
    if buffer < finetune.batch:
        raise ValueError(
            f"buffer is {buffer}, but finetuning draws {finetune.batch} examples at a time; "
            f"it must be {finetune.batch} or more"
        )
    pixels = min(stream.shape[-2:]) if len(stream.shape) == 3 else 0
    if isinstance(finetune.pad, int) and finetune.pad and finetune.pad >= pixels:
        valid = f"below the images' {pixels} pixels" if pixels else f"0, as shape {stream.shape} is not an image"
        raise ValueError(f"pad of the finetuning (in a run: ft_pad) is {finetune.pad}; it must be {valid}")
    if finetune.groups == "auto" and finetune.budget is None and not method.sequential:
        raise ValueError(f"groups is 'auto', but {name} never trains on one task after another: name the groups")
    if finetune.distill and method.memory in ("own", "balanced") and "logits" not in method.columns:
        raise ValueError(f"distill is {finetune.distill}, but the memory of {name} holds no logits to distil from")


def tensors_to_freeze(network: nn.Module, method: Method, selection: Selection, freeze: tuple[str, ...]) -> list[str]:
    """Return the tensors in the groups ``freeze``, or raise ``ValueError`` if nothing would be left to train."""
    if not freeze:
        return []
    listed = ", ".join(freeze)
    if method.joint:
        raise ValueError(f"freeze is {listed}, but {type(method).__name__} has no second task before which to freeze")
    groups = select(dict.fromkeys(selection.grouping, 0.0), groups=freeze)
    names = selection.names(groups)
    if {name for name, _ in network.named_parameters() if name in selection.tracked} <= set(names):
        raise ValueError(f"freeze is {listed}; nothing would be left to train")
    if selection.fixed and set(selection.chosen or ()) <= set(groups):
        chosen = ", ".join(selection.chosen or ())
        raise ValueError(f"groups is {chosen}, freeze is {', '.join(groups)}; nothing would be left to finetune")
    return names
