"""The tables and figures of the paper, each as an item of ``reproduce``. Imports no torch.

Full items are the paper's set-up. With ``quick`` they are small: the digits (or the stream that is asked for), two
seeds, fewer points; the output says so, and is compared with what the paper says rather than with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from forgetless import figures
from forgetless.catalogue import check_name, unknown
from forgetless.presets import STREAM_DEFAULTS
from forgetless.record import Record
from forgetless.report import Row
from forgetless.reproduce import Finding, Item, Line, Measured, Options, planned, steps, way
from forgetless.targets import Target, targets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK = "seq-digits"
LARGE = "forgetless.streams:large_digits"  # 32×32, for VGG-11
BASIS = ("bn.affine", "bn.stats", "fc", "conv1")
REPLAYING = ("er", "agem", "icarl", "fdr", "der", "derpp")


# Tables


def table(name: str, change: Callable[[Target], Mapping[str, Any]] | None, options: Options) -> list[Line]:
    """The rows of a table of the paper that the options ask for."""
    found = [target for target in targets() if target.table == name]
    known = dict.fromkeys(target.label for target in found)
    for row in options.rows:
        if row not in known:
            raise ValueError(f"{name} has {unknown('row', row, known)}")
    if options.quick and options.stream not in {target.stream for target in found}:
        return _elsewhere(name, found, options)
    chosen = [
        target
        for target in found
        if options.stream in (None, target.stream)
        and (options.buffer is None or target.buffer in (None, options.buffer))
        and (not options.rows or target.label in options.rows)
    ]
    buffers = {target.buffer for target in found}
    if not chosen or (options.buffer is not None and options.buffer not in buffers):
        raise ValueError(_nothing(name, found, options))
    lines = []
    for target in chosen:
        method, given = way(target.label, target.stream, target.buffer)
        given |= {"network": target.network, "epochs": target.epochs}
        if target.buffer is not None:
            given["buffer"] = target.buffer
        if target.freeze:
            given["freeze"] = (target.freeze,)
        if change is not None:
            given |= change(target)
        where = "" if target.buffer is None else f", buffer {target.buffer}"
        frozen = f", {target.freeze} frozen" if target.freeze else ""
        runs = planned(target.stream, method, given, options)
        lines.append(Line(target.label + frozen + where, runs, target, target.metric, (target.freeze,)))
    return lines


def _elsewhere(name: str, found: Sequence[Target], options: Options) -> list[Line]:
    """The rows of a table on a stream the paper does not have in it; there is no number to compare with."""
    stream = options.stream or QUICK
    check_name("stream", stream)
    lines = []
    for label in dict.fromkeys(target.label for target in found):
        if options.rows and label not in options.rows:
            continue
        method, given = way(label, stream, options.buffer)
        given |= {} if options.buffer is None else {"buffer": options.buffer}
        given |= {"anytime": True} if name == "anytime" and "repair" in given else {}
        frozen: tuple[str, ...] = ("", "fc1", "fc2", "fc3") if name == "freeze" else ("",)
        for group in frozen:
            own = given | ({"freeze": (group,)} if group else {})
            lines.append(
                Line(label + (f", {group} frozen" if group else ""), planned(stream, method, own, options), at=(group,))
            )
    if not lines:
        raise ValueError(_nothing(name, found, options))
    return lines


def _nothing(name: str, found: Sequence[Target], options: Options) -> str:
    streams = list(dict.fromkeys(target.stream for target in found))
    if options.stream is not None and options.stream not in streams:
        return f"{name} has {unknown('column', options.stream, streams)}"
    labels = list(dict.fromkeys(target.label for target in found))
    buffers = sorted({target.buffer for target in found if target.buffer is not None})
    return (
        f"{name} has no rows {', '.join(options.rows) or '(all)'} with buffer {options.buffer}; it has "
        f"{', '.join(labels)} with buffer {', '.join(map(str, buffers))}"
    )


def _anytime(target: Target) -> dict[str, Any]:
    """k-FPF after a task is a network that could be handed over there: one that was finetuned."""
    return {"anytime": True} if target.label.startswith("k-fpf") else {}


def _fpf_all(target: Target) -> dict[str, Any]:
    """The set-up that the FLOPs of this table give away: 100 steps each time, five times in all for k-FPF."""
    given: dict[str, Any] = {"steps": 100}
    if target.label.startswith("k-fpf"):
        given["every"] = steps(target.stream, target.epochs) // 5 + 1
    return given


def fpf_improves(found: Sequence[Measured]) -> list[Finding]:
    """Does FPF improve every method, and how do k-FPF's accuracy and cost compare with the best of them?"""
    findings = []
    for (stream, where), members in _by_column(found).items():
        accuracy = _accuracies(members)
        gains = {m: accuracy[f"fpf+{m}"].mean - accuracy[m].mean for m in REPLAYING if {m, f"fpf+{m}"} <= set(accuracy)}
        if gains:
            numbers = ", ".join(f"{method} {gain:+.1f}" for method, gain in gains.items())
            claim = f"FPF improves every method on {stream}{where}"
            findings.append(Finding(claim, all(gain > 0 for gain in gains.values()), numbers))
        others = [accuracy[m] for m in REPLAYING if m in accuracy]
        for label in ("k-fpf-ce", "k-fpf-kd"):
            if label in accuracy and others:
                best, own = max(others, key=lambda one: one.mean), accuracy[label]
                name = _label(best)
                findings.append(
                    Finding(
                        f"{label} is more accurate than most replaying methods on {stream}{where}, at less cost than "
                        "the best of them",
                        sum(own.mean > one.mean for one in others) > len(others) / 2 and own.tflops < best.tflops,
                        f"{own.mean:.1f} % for {own.tflops:.3g} TFLOPs; {name} {best.mean:.1f} % for {best.tflops:.3g}",
                    )
                )
    return findings


def fpf_is_enough(found: Sequence[Measured]) -> list[Finding]:
    """Is finetuning the chosen groups as good as finetuning all?"""
    findings = []
    for (stream, _), members in _by_column(found).items():
        accuracy = _accuracies(members)
        pairs = [(a, a.replace("fpf+", "fpf-all+").replace("k-fpf-ce", "k-fpf-all-ce")) for a in accuracy]
        for part, whole in pairs:
            if part != whole and whole in accuracy:
                one, all_ = accuracy[part], accuracy[whole]
                costs = [sum(r.flops.get("finetune", 0) for r in m.records) / len(m.records) for m in (one, all_)]
                noise = (one.std**2 / len(one.records) + all_.std**2 / len(all_.records)) ** 0.5
                findings.append(
                    Finding(
                        f"{part} is within two standard errors of {whole} on {stream} or above it, for fewer FLOPs",
                        one.mean > all_.mean - 2 * noise and costs[0] < costs[1],
                        f"{one.mean:.1f} and {all_.mean:.1f} %, {costs[0] / 1e12:.3g} and {costs[1] / 1e12:.3g} TFLOPs",
                    )
                )
    return findings


def anytime_best(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for (stream, _), members in _by_column(found).items():
        curves = {_label(one): Row(one.line.name, one.records).anytime for one in members}
        if "k-fpf-ce" in curves:
            own = curves.pop("k-fpf-ce")
            behind = [t + 1 for t in range(1, len(own)) if any(other[t] > own[t] for other in curves.values())]
            numbers = f"k-FPF {', '.join(f'{v:.1f}' for v in own)}; beaten after {behind or 'none'}"
            claim = f"after every task but the first, k-FPF has the best accuracy so far on {stream}"
            findings.append(Finding(claim, not behind, numbers))
    return findings


def freezing_hurts(found: Sequence[Measured]) -> list[Finding]:
    last = {one.line.at[0]: one.records for one in found}
    if "" not in last or len(last) < 2:
        return []
    accuracy = {group: sum(r.accuracy for r in records) / len(records) for group, records in last.items()}
    free = accuracy.pop("")
    numbers = f"none frozen {free:.1f}; " + ", ".join(f"{group} {value:.1f}" for group, value in accuracy.items())
    worst = min(accuracy, key=lambda group: accuracy[group])
    first = "block1" if "block1" in accuracy else "fc1"
    return [
        Finding("freezing any group after the first task costs accuracy", max(accuracy.values()) < free, numbers),
        Finding(f"freezing {first} costs the most", worst == first, numbers),
    ]


def cheaper(found: Sequence[Measured]) -> list[Finding]:
    """k-FPF-KD beside DER++, accuracy and cost."""
    findings = []
    for (stream, _), members in _by_column(found).items():
        accuracy = _accuracies(members)
        if {"k-fpf-kd", "derpp"} <= set(accuracy):
            one, other = accuracy["k-fpf-kd"], accuracy["derpp"]
            numbers = f"{one.mean:.1f} and {other.mean:.1f} %, {one.tflops:.3g} and {other.tflops:.3g} TFLOPs"
            claim = f"k-FPF-KD is more accurate than DER++ on {stream} for less than half of its FLOPs"
            findings.append(Finding(claim, one.mean > other.mean and one.tflops < other.tflops / 2, numbers))
    return findings


def _label(one: Measured) -> str:
    """What its table calls it, without the buffer or what is frozen."""
    return one.line.name.partition(", ")[0]


def _accuracies(found: Sequence[Measured]) -> dict[str, Measured]:
    """The lines that are accuracies, by their label."""
    return {_label(one): one for one in found if one.line.metric == "accuracy"}


def _by_column(found: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """By stream and buffer; runs without a buffer in each."""
    streams = dict.fromkeys(one.line.stream for one in found)
    columns: dict[tuple[str, str], list[Measured]] = {}
    for stream in streams:
        members = [one for one in found if one.line.stream == stream]
        buffers = sorted({one.line.target.buffer or 0 for one in members if one.line.target}) or [0]
        for buffer in [b for b in buffers if b] or [0]:
            where = f", buffer {buffer}" if buffer else ""
            columns[stream, where] = [
                one for one in members if one.line.target is None or one.line.target.buffer in (None, buffer)
            ]
    return columns


def draw_table(found: Sequence[Measured]) -> dict[str, Figure]:
    """The paper's numbers beside ours for each column, and accuracy by cost."""
    pictures = {}
    for (stream, where), members in _by_column(found).items():
        lines = [one for one in members if one.line.metric == "accuracy"]
        name = stream + where.replace(", buffer ", "-")
        compared = [
            (_label(one), (one.line.target.mean, one.line.target.std or 0.0), (one.mean, one.std))
            for one in lines
            if one.line.target
        ]
        if compared:
            pictures[f"paper-{name}"] = figures.paired(compared, f"{stream}{where}")
        if lines:
            pictures[f"cost-{name}"] = draw_cost(lines)
    return pictures


def draw_cost(found: Sequence[Measured]) -> Figure:
    return figures.cost([Row(_label(one), one.records) for one in found])


def draw_anytime(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for stream in dict.fromkeys(one.line.stream for one in found):
        own = {one.line.name: Row(one.line.name, one.records) for one in found if one.line.stream == stream}
        pictures[stream] = figures.anytime(list(own.values()))
    return pictures


# Figures


def dynamics(options: Options) -> list[Line]:
    """The panels (a) to (h): VGG, ResNet, MLP, another data set, ER, another scenario."""
    panels: list[tuple[str, str, str, dict[str, Any]]]
    if options.quick or options.stream:
        stream = options.stream or QUICK
        check_name("stream", stream)
        buffer = min(options.buffer or 2000, 400 if options.quick else 2000)
        panels = [("SGD", stream, "sgd", {}), (f"ER, buffer {buffer}", stream, "er", {"buffer": buffer})]
        if options.quick:
            panels = [(name, stream, method, given | {"epochs": 5}) for name, stream, method, given in panels]
    else:
        panels = [
            ("a, b: VGG-11", "seq-cifar10", "sgd", {"network": "vgg11"}),
            ("c, d: ResNet-18", "seq-cifar10", "sgd", {}),
            ("e: MLP", "seq-mnist", "sgd", {}),
            ("f: Seq-OrganAMNIST", "seq-organamnist", "sgd", {}),
            ("g: ER, buffer 2000", "seq-cifar10", "er", {"buffer": 2000}),
            ("h: Seq-PACS", "seq-pacs", "sgd", {}),
        ]
    return [Line(name, planned(stream, method, given, options)) for name, stream, method, given in panels]


def dynamics_findings(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for one in found:
        name, record = one.line.name, one.records[0]
        findings += _at_switches(name, one.records) + _ranking(name, Row(name, one.records).sensitivity, record)
    return findings


def _at_switches(name: str, records: Sequence[Record]) -> list[Finding]:
    """Do all groups change more when the task switches, and can that be told from the changes alone?"""
    rows = [row for record in records for row in record.epoch_changes]
    if max(epoch for _, epoch, _ in rows) < 2:
        return []
    ratios = {}
    for group in rows[0][2]:
        first = [changes[group] for task, epoch, changes in rows if epoch == 1 and task > 1]
        later = [changes[group] for task, epoch, changes in rows if epoch > 1 and task > 1]
        ratios[group] = (sum(first) / len(first)) / max(sum(later) / len(later), 1e-12)
    numbers = ", ".join(f"{group} {ratio:.1f} ×" for group, ratio in ratios.items())
    findings = [
        Finding(f"{name}: all groups change more in the first epoch of a task", min(ratios.values()) > 1, numbers)
    ]
    starts = [i for i, row in enumerate(records[0].epoch_changes) if row[1] == 1 and row[0] > 1]
    seen = records[0].boundaries
    findings.append(
        Finding(
            f"{name}: the changes alone tell where tasks begin",
            seen == starts,
            f"found {len(set(seen) & set(starts))} of {len(starts)}, {len(set(seen) - set(starts))} where none is",
        )
    )
    return findings


def _ranking(name: str, scores: Mapping[str, float], record: Record) -> list[Finding]:
    """Which groups are sensitive: the last layer, statistics, and the convolutions by depth."""
    if not scores:
        return []
    numbers = ", ".join(f"{group} {score:.2f}" for group, score in scores.items())
    trainable = {group: score for group, score in scores.items() if not group.endswith(".stats")}
    head = next(group for group in ("fc3", "fc") if group in scores)
    findings = []
    if record.settings["stream"] in ("seq-pacs", "rot-mnist"):
        first = next(group for group in ("conv1", "fc1") if group in scores)
        claim = f"{name}: the last layer is no more sensitive than the first (domain-IL)"
        findings.append(Finding(claim, scores[head] <= scores[first], numbers))
    else:
        claim = f"{name}: the last layer is the most sensitive of those that are trained"
        findings.append(Finding(claim, max(trainable, key=lambda g: trainable[g]) == head, numbers))
    if "bn.stats" in scores:
        claim = f"{name}: the statistics of batch norm change the most"
        findings.append(Finding(claim, max(scores, key=lambda g: scores[g]) == "bn.stats", numbers))
    convolutions = [score for group, score in scores.items() if group.startswith(("conv", "block"))]
    if len(convolutions) > 1:
        claim = f"{name}: convolutions are the more sensitive the nearer they are to the input"
        findings.append(Finding(claim, convolutions == sorted(convolutions, reverse=True), numbers))
    return findings


def draw_dynamics(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for one in found:
        stem = one.line.name.split(",")[0].split(":")[-1].strip().lower().replace(" ", "-")
        record, title = one.records[0], f"{one.line.name}; {one.line.stream}"
        if max(epoch for _, epoch, _ in record.epoch_changes) > 1:
            pictures[f"{stem}-epochs"] = figures.dynamics(record, f"{title}: consecutive epochs")
        pictures[f"{stem}-tasks"] = figures.dynamics(record, f"{title}: consecutive tasks", "tasks")
    return pictures


def bn_dynamics(options: Options) -> list[Line]:
    """ResNet-18, plain SGD; the weights and biases of batch norm by stage."""
    stream = options.stream or (QUICK if options.quick else "seq-cifar10")
    given = {"network": "resnet18"} | ({"epochs": 2, "batch": 32, "lr": 0.03} if options.quick else {})
    return [Line("SGD", planned(stream, "sgd", given, options))]


def stages(record: Record) -> dict[str, list[float]]:
    """Change of the weights and biases of batch norm from task to task, by stage: bn1, block1 … block4."""
    found: dict[str, list[list[float]]] = {}
    for name, values in record.tensor_changes.items():
        if "bn" in name and name.endswith((".weight", ".bias")) and "running" not in name:
            stage = name.split(".")[0]
            found.setdefault(stage, []).append(values)
    return {stage: [sum(v) / len(v) for v in zip(*rows, strict=True)] for stage, rows in found.items()}


def bn_findings(found: Sequence[Measured]) -> list[Finding]:
    findings = []
    for one in found:
        means = [{s: sum(v) / len(v) for s, v in stages(record).items()} for record in one.records]
        mean = {stage: sum(m[stage] for m in means) / len(means) for stage in means[0]}
        numbers = ", ".join(f"{stage} {value:.2g}" for stage, value in mean.items())
        bottom, *deeper = mean.values()
        claim = f"{one.line.name}: the bottom batch norm changes the most"
        findings.append(Finding(claim, bottom > max(deeper), numbers))
        claim = f"{one.line.name}: deeper ones change less"
        findings.append(Finding(claim, deeper == sorted(deeper, reverse=True), numbers))
    return findings


def draw_bn(found: Sequence[Measured]) -> dict[str, Figure]:
    pictures = {}
    for one in found:
        series = {
            stage: [(task + 2.0, value) for task, value in enumerate(values)]
            for stage, values in stages(one.records[0]).items()
        }
        title = f"weights and biases of batch norm, {one.line.stream}"
        pictures["bn"] = figures.curves(series, "task", "mean absolute change", title, log="y")
    return pictures


def filter_dynamics(options: Options) -> list[Line]:
    """VGG-11, plain SGD; every filter by itself."""
    stream = options.stream or (LARGE if options.quick else "seq-cifar10")
    given = {"network": "vgg11"} | ({"epochs": 2, "batch": 16, "lr": 0.01} if options.quick else {})
    return [Line("SGD", planned(stream, "sgd", given, Options(seeds=1, device=options.device)))]


def filter_findings(found: Sequence[Measured]) -> list[Finding]:
    filters = found[0].records[0].details["filters"]
    typical = {layer: median(changes["across"]) for layer, changes in filters.items()}
    shares = {
        layer: sum(change > 2 * typical[layer] for change in changes["across"]) / len(changes["across"])
        for layer, changes in filters.items()
    }
    first, *_, last = typical.values()
    return [
        Finding(
            "filters of the bottom layer change more than those of the top one",
            first > last,
            "medians: " + ", ".join(f"{layer} {value:.2g}" for layer, value in typical.items()),
        ),
        Finding(
            "when tasks shift, a small part of the filters of each layer, under a quarter, changes more than twice as "
            "much as the median",
            0 < max(shares.values()) < 0.25,
            ", ".join(f"{layer} {share:.0%}" for layer, share in shares.items()),
        ),
    ]


def draw_filters(found: Sequence[Measured]) -> dict[str, Figure]:
    filters = found[0].records[0].details["filters"]
    parts = {layer: (changes["within"], changes["across"]) for layer, changes in filters.items()}
    return {"filters": figures.histograms(parts, f"{found[0].line.stream}, VGG-11")}


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
        network = STREAM_DEFAULTS.get(stream, {}).get("network", "resnet18")
        for kind, method in (("FPF", "er"), ("k-FPF", "sgd")):
            for name, groups in MLP_CHOICES if network == "mlp" else CHOICES:
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
            numbers = ", ".join(f"{name} {one.mean:.1f}" for name, one in own.items())
            best = max(own, key=lambda name: own[name].mean)
            share = own[best].records[0].share
            claim = f"{stream}, {kind}: the best is to finetune a part of the parameters, not all"
            findings.append(Finding(claim, best != "ALL", f"best: {best}, {share:.2%} of them; {numbers}"))
            without, with_ = (("FC1", "FC2"), "FC3") if "FC3" in own else (("BN", "CONV1"), "BN+FC")
            if kind == "k-FPF" and stream != "seq-pacs" and {*without, with_} <= set(own):
                gap = own[with_].mean - max(own[name].mean for name in without)
                claim = f"{stream}, {kind}: without the last layer it is much worse (by 5 points or more)"
                findings.append(Finding(claim, gap > 5, f"by {gap:.1f}; {numbers}"))
            if kind == "k-FPF" and {"Basis+Block3", "Basis+Block4"} <= set(own):
                claim = f"{stream}, {kind}: block4 in place of block3 makes it worse"
                findings.append(Finding(claim, own["Basis+Block4"].mean < own["Basis+Block3"].mean, numbers))
    return findings


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
        every = total // k + 1  # k − 1 times on the way, and once at the end
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
    network = STREAM_DEFAULTS.get(stream, {}).get("network", "resnet18")
    head: tuple[str, ...] = ("fc3",) if network == "mlp" else ("bn.affine", "bn.stats", "fc")
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


def flops_accuracy(options: Options) -> list[Line]:
    """The columns of the main table with buffer 500, for their accuracy and cost."""
    lines = table("table1", None, replace(options, buffer=options.buffer or (None if options.quick else 500)))
    if options.quick or options.stream:
        return lines
    streams = ("seq-pathmnist", "seq-tinyimagenet", "seq-pacs")
    return [line for line in lines if line.stream in streams]


def draw_flops(found: Sequence[Measured]) -> dict[str, Figure]:
    return {
        f"{stream}{where.replace(', buffer ', '-')}": draw_cost(own)
        for (stream, where), own in _by_column(found).items()
    }


ITEMS: Mapping[str, Item] = {
    "table1": Item(
        "Table 1", "all methods with and without FPF, and k-FPF, on five streams", partial(table, "table1", None),
        fpf_improves, draw_table, ("table1",),
    ),
    "mlp-vgg": Item(
        "table of the MLP and VGG-11", "the same on Seq-MNIST and, with VGG-11, on Seq-CIFAR-10",
        partial(table, "mlp-vgg", None), fpf_improves, draw_table, ("mlp-vgg",),
    ),
    "fpf-all": Item(
        "table FPF and FPF-ALL", "the chosen groups beside all of them", partial(table, "fpf-all", _fpf_all),
        fpf_is_enough, draw_table, ("fpf-all",),
    ),
    "anytime": Item(
        "tables of the accuracy after each task", "accuracy on the tasks so far", partial(table, "anytime", _anytime),
        anytime_best, draw_anytime, ("anytime",),
    ),
    "many-epochs": Item(
        "table of 50 epochs", "50 epochs a task, and Rotated MNIST", partial(table, "many-epochs", None),
        cheaper, draw_table, ("many-epochs",),
    ),
    "freeze": Item(
        "table of frozen groups", "ER with a group frozen after the first task", partial(table, "freeze", None),
        freezing_hurts, draw_anytime, ("freeze",),
    ),
    "dynamics": Item(
        "Figure 1 (a–h)", "how far each group moves, over epochs and from task to task", dynamics,
        dynamics_findings, draw_dynamics, without=("rows",),
    ),
    "bn-dynamics": Item(
        "figure of batch norm", "weights and biases of batch norm by stage", bn_dynamics, bn_findings, draw_bn,
        without=("rows", "buffer"),
    ),
    "filter-dynamics": Item(
        "figure of filters", "how the changes of filters are distributed", filter_dynamics, filter_findings,
        draw_filters, filters=True, without=("rows", "buffer", "seeds"),
    ),
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
    "flops-accuracy": Item(
        "figure of FLOPs and accuracy", "accuracy and cost of all methods", flops_accuracy, fpf_improves, draw_flops
    ),
}  # fmt: skip


def notes(options: Options, lines: Sequence[Line]) -> list[str]:
    """What of a quick or partial reproduction is not the paper's."""
    said = []
    streams = ", ".join(dict.fromkeys(line.stream for line in lines))
    seeds = len(lines[0].runs)
    if options.quick:
        said.append(f"quick: {streams}, {seeds} seed{'s' if seeds > 1 else ''}, fewer points; no more than a hint")
    settings = [one.settings for line in lines for one in line.runs]
    choosing = [one.threshold for one in settings if one.repair == "k-fpf" and one.groups == "auto"]
    lower = sorted({threshold for threshold in choosing if threshold not in (None, 0.3)}, key=str)
    if lower:
        said.append(f"k-FPF chooses groups above {', '.join(map(str, lower))}, found on validation; the paper says 0.3")
    if not any(line.target for line in lines):
        said.append("the paper gives no numbers for this: what it says is checked instead")
    if any("kd" in line.name for line in lines):
        weights = ", ".join(dict.fromkeys(f"{one.stream} {one.kd}" for one in settings if one.kd))
        said.append(f"λ of KD: {weights} (searched for, or the middle of the paper's grid)")
    return said
