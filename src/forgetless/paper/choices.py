"""The figures of what is chosen: the groups to finetune, how often and how long, the buffer, the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgetless.config.catalogue import check_name
from forgetless.experiments.presets import STREAM_DEFAULTS
from forgetless.paper.reproduce import QUICK, Finding, Item, Line, Measured, Options, network, planned, scenario, steps
from forgetless.reports import charts as figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASIS = ("bn.affine", "bn.stats", "fc", "conv1")
CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("BN", ("bn.affine", "bn.stats")),
    ("FC", ("fc",)),
    ("CONV1", ("conv1",)),
    ("BN+FC", ("bn.affine", "bn.stats", "fc")),
    ("Basis", BASIS),
    ("Basis+Block1", (*BASIS, "block1")),
    ("Basis+Block2", (*BASIS, "block2")),
    ("Basis+Block3", (*BASIS, "block3")),
    ("Basis+Block4", (*BASIS, "block4")),
    ("Basis+Block1-3", (*BASIS, "block1", "block2", "block3")),
    ("ALL", ("all",)),
)
MLP_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("FC1", ("fc1",)),
    ("FC2", ("fc2",)),
    ("FC3", ("fc3",)),
    ("FC2+FC3", ("fc2", "fc3")),
    ("FC1+FC3", ("fc1", "fc3")),
    ("ALL", ("all",)),
)


def parameters(options: Options) -> list[Line]:
    """FPF beside ER and k-FPF, with different groups finetuned; class-IL and domain-IL."""
    quick = options.quick and options.stream is None
    streams = [QUICK] if quick else [options.stream] if options.stream else ["seq-pathmnist", "seq-pacs"]
    lines = []
    for stream in streams:
        check_name("stream", stream)
        for kind, method in (("FPF", "er"), ("k-FPF", "sgd")):
            for name, groups in MLP_CHOICES if network(stream) == "mlp" else CHOICES:
                given: dict[str, Any] = {"repair": kind.lower(), "groups": "all" if groups == ("all",) else groups}
                given |= {} if options.buffer is None else {"buffer": options.buffer}
                runs = planned(stream, method, given, options)
                lines.append(Line(f"{kind}, {name}", runs, at=(kind, name)))
    return lines


def parameters_findings(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for stream in dict.fromkeys(one.line.stream for one in found):
        for kind in ("FPF", "k-FPF"):
            own = {one.line.at[1]: one for one in found if one.line.stream == stream and one.line.at[0] == kind}
            if len(own) < 2:
                continue
            small = [name for name, one in own.items() if one.records[0].share <= 0.25]
            if "ALL" in own and small:
                best = max(small, key=lambda name: own[name].mean)
                claim = f"{stream}, {kind}: a quarter of the parameters or less is at least as good to finetune as all"
                numbers = f"{_shown(own, best)} with {own[best].records[0].share:.2%} of them, {_shown(own, 'ALL')}"
                findings.append(Finding(claim, own[best].mean >= own["ALL"].mean, numbers))
            if kind == "FPF" and "BN+FC" in own and len(own) > 2:
                best = max(own, key=lambda name: own[name].mean)
                claim = f"{stream}, {kind}: batch norm and the last layer are the best to finetune"
                findings.append(Finding(claim, best == "BN+FC", _shown(own, *dict.fromkeys(("BN+FC", best)))))
            without, with_ = (("FC1", "FC2"), "FC3") if "FC3" in own else (("BN", "CONV1"), "BN+FC")
            if kind == "k-FPF" and scenario(stream) == "class" and {*without, with_} <= set(own):
                gap = own[with_].mean - max(own[name].mean for name in without)
                claim = f"{stream}, {kind}: without the last layer it is much worse (by 5 points or more)"
                findings.append(Finding(claim, gap > 5, f"by {gap:.1f}; {_shown(own, *without, with_)}"))
            if kind == "k-FPF" and {"Basis+Block3", "Basis+Block4"} <= set(own):
                claim = f"{stream}, {kind}: block4 in place of block3 makes it worse"
                worse = own["Basis+Block4"].mean < own["Basis+Block3"].mean
                findings.append(Finding(claim, worse, _shown(own, "Basis+Block4", "Basis+Block3")))
    return findings


def _shown(own: Mapping[str, Measured], *names: str) -> str:
    return ", ".join(f"{name} {own[name].mean:.1f}" for name in names)


def draw_parameters(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for stream in dict.fromkeys(one.line.stream for one in found):
        parts: dict[str, list[tuple[str, float, float, float]]] = {}
        for one in found:
            if one.line.stream == stream:
                size = one.records[0].share * sum(one.records[0].parameters.values())
                parts.setdefault(one.line.at[0], []).append((one.line.at[1], one.mean, one.tflops, size))
        pictures[stream] = figures.choices(parts, stream)
    return pictures


def k_tau(options: Options) -> list[Line]:
    """k-FPF by how often and how long it finetunes."""
    stream = options.stream or (QUICK if options.quick else "seq-pathmnist")
    if stream not in STREAM_DEFAULTS:
        raise ValueError(f"stream is {stream!r}; for k-tau it must be one of {', '.join(STREAM_DEFAULTS)}")
    total = steps(stream)
    times = (2, 5, 9, 41) if options.quick else (2, 5, 9, 21, 41, 121)
    lengths = (10, 30, 100) if options.quick else (20, 50, 100, 200, 300)
    lines = []
    for k in times:
        # k − 1 times on the way, and once at the end; fewer are made, since S_g is known in the second task only.
        every = total // k + 1
        for length in lengths:
            given = {"repair": "k-fpf", "every": every, "steps": length}
            given |= {} if options.buffer is None else {"buffer": options.buffer}
            runs = planned(stream, "sgd", given, options)
            lines.append(Line(f"k {k} (τ {every}), {length} steps", runs, at=(k, every, length)))
    return lines


def k_tau_findings(found: Sequence[Measured]) -> list[Finding]:
    by_k: dict[int, dict[int, Measured]] = {}
    for one in found:
        by_k.setdefault(one.line.at[0], {})[one.line.at[2]] = one
    few, many = min(by_k), max(by_k)
    middle = 9 if 9 in by_k else sorted(by_k)[len(by_k) // 2]
    lengths, both = sorted(by_k[middle]), by_k[middle].keys() & by_k[many].keys()
    if not few < middle < many or max(both, default=lengths[0]) == lengths[0]:
        return []
    longest = max(both)
    tops = {k: max(one.mean for one in own.values()) for k, own in by_k.items()}
    numbers = ", ".join(f"k {k}: {top:.1f} %" for k, top in tops.items())
    shorter = lengths[lengths.index(longest) - 1]
    gain = by_k[middle][longest].mean - by_k[middle][shorter].mean
    costs = by_k[many][longest].tflops / by_k[middle][longest].tflops
    return [
        Finding(f"with k {few} no number of steps reaches what k {middle} reaches", tops[few] < tops[middle], numbers),
        Finding(
            f"with k {middle} the accuracy saturates: {longest} steps give less than 2 points over {shorter}",
            gain < 2,
            f"{by_k[middle][shorter].mean:.1f} → {by_k[middle][longest].mean:.1f} %",
        ),
        Finding(
            f"k {many} adds little accuracy (under 3 points over k {middle}) for much more cost",
            tops[many] - tops[middle] < 3 and costs > 1.2,
            f"{tops[middle]:.1f} → {tops[many]:.1f} %, {costs:.1f} × the FLOPs",
        ),
    ]


def draw_k_tau(found: Sequence[Measured]) -> dict[str, Figure]:
    series: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        series.setdefault(f"k = {one.line.at[0]} (τ = {one.line.at[1]})", []).append((one.tflops, one.mean))
    title = f"k-FPF-CE, {found[0].line.stream}; along each line more steps a time"
    # The best trade-off: the cheapest within a point of the best.
    best = max(one.mean for one in found)
    star = min((one for one in found if one.mean > best - 1), key=lambda one: one.tflops)
    drawn = figures.curves(series, "TFLOPs of the whole run", "accuracy (%)", title, star=(star.tflops, star.mean))
    return {"k-tau": drawn}


def buffer_epochs(options: Options) -> list[Line]:
    """ER and FPF+ER by the size of the buffer, and by the epochs a task."""
    stream = options.stream or (QUICK if options.quick else "seq-pathmnist")
    check_name("stream", stream)
    head: tuple[str, ...] = ("fc3",) if network(stream) == "mlp" else ("bn.affine", "bn.stats", "fc")
    sizes = (50, 100, 200, 400) if options.quick else (100, 200, 500, 1000, 2000)
    lengths = (1, 5, 10) if options.quick else (1, 2, 5, 10, 20)
    lines = []
    for axis, values in (("buffer", sizes), ("epochs", lengths)):
        for value in values:
            for name, given in (("ER", {}), ("FPF+ER", {"repair": "fpf", "groups": head})):
                runs = planned(stream, "er", given | {axis: value}, options)
                lines.append(Line(f"{name}, {axis} {value}", runs, at=(axis, value, name)))
    return lines


def buffer_epochs_findings(found: Sequence[Measured]) -> list[Finding]:
    at = {one.line.at: one for one in found}
    gains = {
        (axis, value): at[axis, value, "FPF+ER"].mean - one.mean
        for (axis, value, name), one in at.items()
        if name == "ER" and (axis, value, "FPF+ER") in at
    }
    sizes = [one.mean for (axis, _, name), one in at.items() if axis == "buffer" and name == "ER"]
    if not gains or len(sizes) < 2:
        return []
    return [
        Finding(
            "finetuning the last layer (and batch norm) improves ER in all scenarios",
            min(gains.values()) > 0,
            ", ".join(f"{axis} {value}: {gain:+.1f}" for (axis, value), gain in gains.items()),
        ),
        Finding(
            "ER improves with the size of the buffer",
            sizes == sorted(sizes),
            " → ".join(f"{size:.1f}" for size in sizes) + " %",
        ),
    ]


def draw_buffer_epochs(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for axis in ("buffer", "epochs"):
        series: dict[str, list[tuple[float, float]]] = {}
        for one in found:
            if one.line.at[0] == axis:
                series.setdefault(one.line.at[2], []).append((one.line.at[1], one.mean))
        if series:
            name = "examples in the buffer" if axis == "buffer" else "epochs a task"
            pictures[axis] = figures.curves(series, name, "accuracy (%)", found[0].line.stream, log="x")
    return pictures


ITEMS: Mapping[str, Item] = {
    "parameters": Item(
        "figures of what is finetuned", "FPF and k-FPF with different groups, class-IL and domain-IL", parameters,
        parameters_findings, draw_parameters, without=("rows",),
    ),
    "k-tau": Item(
        "figure (a) of k and τ", "k-FPF by how often and how long it finetunes", k_tau, k_tau_findings, draw_k_tau,
        without=("rows",),
    ),
    "buffer-epochs": Item(
        "figure (b) of buffers and epochs", "ER and FPF + ER by buffer and epochs", buffer_epochs,
        buffer_epochs_findings, draw_buffer_epochs, without=("rows", "buffer"),
    ),
}  # fmt: skip
