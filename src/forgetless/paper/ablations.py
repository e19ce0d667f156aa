"""The figures that vary one choice: the finetuned groups, how often and how long, the buffer, the epochs."""

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence

from forgetless.config.catalogue import STREAMS
from forgetless.paper import reproduce
from forgetless.paper.reproduce import Figures, Finding, Item, Line, Measured, Options, listed, plan_runs
from forgetless.reports import charts
from forgetless.reports.rows import Row, grouped

BASIS = ("bn.affine", "bn.stats", "fc", "conv1")
RESNET_GROUPS: Mapping[str, tuple[str, ...] | str] = {
    "BN": BASIS[:2], "FC": ("fc",), "CONV1": ("conv1",), "BN+FC": BASIS[:3], "Basis": BASIS,
    **{f"Basis+Block{i}": (*BASIS, f"block{i}") for i in (1, 2, 3, 4)},
    "Basis+Block1-3": (*BASIS, "block1", "block2", "block3"), "ALL": "all",
}  # fmt: skip
MLP_GROUPS: Mapping[str, tuple[str, ...] | str] = {
    "FC1": ("fc1",), "FC2": ("fc2",), "FC3": ("fc3",), "FC2+FC3": ("fc2", "fc3"), "FC1+FC3": ("fc1", "fc3"),
    "ALL": "all",
}  # fmt: skip
# Where a line is in its figure: the finetuned groups; k finetunings, one every τ steps; a size of the buffer or epochs.
GroupsPoint = namedtuple("GroupsPoint", ("repair", "groups"))
SchedulePoint = namedtuple("SchedulePoint", ("k", "every", "steps"))
SizePoint = namedtuple("SizePoint", ("axis", "value", "method"))


def parameters(options: Options) -> Iterator[Line]:
    """Plan FPF after ER, and k-FPF, with different groups, on a class-IL and a domain-IL stream."""
    for stream in dict.fromkeys(options.stream_or(default) for default in ("seq-pathmnist", "seq-pacs")):
        for repair, method in (("FPF", "er"), ("k-FPF", "sgd")):
            for name, groups in (MLP_GROUPS if reproduce.default_network(stream) == "mlp" else RESNET_GROUPS).items():
                given = {"repair": repair.lower(), "groups": groups, **options.buffer_setting}
                runs = plan_runs(stream, method, given, options)
                yield Line(f"{repair}, {name}", runs, point=GroupsPoint(repair, name))


def judge_parameters(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether few groups suffice, and which ones matter; claims whose groups were not measured are left out."""
    for (stream, repair), members in grouped(measured, lambda e: (e.line.stream, e.line.point.repair)).items():
        where, by_groups = f"{stream}, {repair}", {entry.line.point.groups: entry for entry in members}
        accuracy = {name: entry.mean for name, entry in by_groups.items()}
        best = max(accuracy, key=accuracy.__getitem__)
        small = [name for name, entry in by_groups.items() if entry.records[0].share <= 0.25 and name != "ALL"]
        if "ALL" in accuracy and small:
            part = max(small, key=accuracy.__getitem__)
            claim = f"{where}: finetuning at most a quarter of the parameters is at least as good as finetuning all"
            share = f"with {by_groups[part].records[0].share:.2%} of them"
            numbers = f"{_shown(accuracy, part)} {share}, {_shown(accuracy, 'ALL')}"
            yield Finding(claim, accuracy[part] >= accuracy["ALL"], numbers)
        if repair == "FPF" and "BN+FC" in accuracy and len(accuracy) > 2:
            claim = f"{where}: batch norm and the last layer are the best groups to finetune"
            yield Finding(claim, best == "BN+FC", _shown(accuracy, "BN+FC", best))
        without, with_last = (("FC1", "FC2"), "FC3") if "FC3" in accuracy else (("BN", "CONV1"), "BN+FC")
        if repair == "k-FPF" and reproduce.scenario(stream) == "class" and {*without, with_last} <= accuracy.keys():
            gap = accuracy[with_last] - max(accuracy[name] for name in without)
            claim = f"{where}: leaving out the last layer costs 5 points or more"
            yield Finding(claim, gap > 5, f"{gap:.1f} points; {_shown(accuracy, *without, with_last)}")
        blocks = ("Basis+Block4", "Basis+Block3")
        if repair == "k-FPF" and accuracy.keys() >= set(blocks):
            claim = f"{where}: block4 instead of block3 lowers the accuracy"
            yield Finding(claim, accuracy[blocks[0]] < accuracy[blocks[1]], _shown(accuracy, *blocks))


def _shown(accuracy: Mapping[str, float], *names: str) -> str:
    """Return the accuracies of some groups as text."""
    return listed({name: accuracy[name] for name in names}, ".1f")


def draw_parameters(measured: Sequence[Measured]) -> Figures:
    """Draw accuracy, FLOPs and parameters of each choice of groups, one figure per stream."""
    figures = {}
    for stream, members in grouped(measured, lambda entry: entry.line.stream).items():
        by_repair = grouped(members, lambda entry: str(entry.line.point.repair))
        rows = {repair: [Row(e.line.point.groups, e.records) for e in lines] for repair, lines in by_repair.items()}
        figures[stream] = charts.choices(rows, stream)
    return figures


def k_tau(options: Options) -> Iterator[Line]:
    """Plan k-FPF with different numbers (k) and lengths of its finetunings."""
    stream = options.stream_or("seq-pathmnist")
    if stream not in STREAMS:
        raise ValueError(f"stream is {stream!r}; for k-tau it must be one of {', '.join(STREAMS)}")
    for k in (2, 5, 9, 41) if options.quick else (2, 5, 9, 21, 41, 121):
        # k − 1 times during training and once at the end. Fewer happen, since S_g is known from the second task on.
        every = reproduce.stream_steps(stream) // k + 1
        for steps in (10, 30, 100) if options.quick else (20, 50, 100, 200, 300):
            given = {"repair": "k-fpf", "every": every, "steps": steps, **options.buffer_setting}
            runs = plan_runs(stream, "sgd", given, options)
            yield Line(f"k {k} (τ {every}), {steps} steps", runs, point=SchedulePoint(k, every, steps))


def judge_k_tau(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether k = 9 suffices: fewer are worse, longer and more frequent finetuning adds little."""
    lines = grouped(measured, lambda entry: int(entry.line.point.k))
    by_k = {k: {entry.line.point.steps: entry for entry in members} for k, members in lines.items()}
    few, many = min(by_k), max(by_k)
    lengths = sorted(by_k.get(9, {}).keys() & by_k[many].keys())
    if not few < 9 < many or len(lengths) < 2:
        return
    shorter, longest = (by_k[9][steps] for steps in lengths[-2:])
    best = {k: max(entry.mean for entry in by_steps.values()) for k, by_steps in by_k.items()}
    cost = by_k[many][lengths[-1]].tflops / longest.tflops
    claim = f"k = {few} does not reach the accuracy of k = 9 with any number of steps"
    numbers = ", ".join(f"k = {k}: {accuracy:.1f} %" for k, accuracy in best.items())
    yield Finding(claim, best[few] < best[9], numbers)
    claim = f"with k = 9 the accuracy saturates: {lengths[-1]} steps gain less than 2 points over {lengths[-2]}"
    yield Finding(claim, longest.mean - shorter.mean < 2, f"{shorter.mean:.1f} → {longest.mean:.1f} %")
    claim = f"k = {many} gains less than 3 points over k = 9 at a much higher cost"
    numbers = f"{best[9]:.1f} → {best[many]:.1f} %, {cost:.1f} × the FLOPs"
    yield Finding(claim, best[many] - best[9] < 3 and cost > 1.2, numbers)


def draw_k_tau(measured: Sequence[Measured]) -> Figures:
    """Draw accuracy over FLOPs, a line per k; the star marks the cheapest point within a point of the best."""
    lines = grouped(measured, lambda entry: f"k = {entry.line.point.k} (τ = {entry.line.point.every})")
    series = {name: [(entry.tflops, entry.mean) for entry in members] for name, members in lines.items()}
    best = max(entry.mean for entry in measured)
    star = min((entry.tflops, entry.mean) for entry in measured if entry.mean > best - 1)
    title = f"k-FPF-CE, {measured[0].line.stream}; more steps per finetuning along each line"
    return {"k-tau": charts.curves(series, "TFLOPs of the whole run", "accuracy (%)", title, star=star)}


def buffer_epochs(options: Options) -> Iterator[Line]:
    """Plan ER and FPF + ER with different buffers, and with different numbers of epochs per task."""
    stream = options.stream_or("seq-pathmnist")
    head = MLP_GROUPS["FC3"] if reproduce.default_network(stream) == "mlp" else RESNET_GROUPS["BN+FC"]
    buffers = (50, 100, 200, 400) if options.quick else (100, 200, 500, 1000, 2000)
    epochs = (1, 5, 10) if options.quick else (1, 2, 5, 10, 20)
    for axis, value in [*(("buffer", size) for size in buffers), *(("epochs", count) for count in epochs)]:
        for name, given in (("ER", {}), ("FPF+ER", {"repair": "fpf", "groups": head})):
            runs = plan_runs(stream, "er", given | {axis: value}, options)
            yield Line(f"{name}, {axis} {value}", runs, point=SizePoint(axis, value, name))


def judge_buffer_epochs(measured: Sequence[Measured]) -> Iterator[Finding]:
    """Judge whether FPF always improves ER, and whether ER improves with the buffer."""
    accuracy = {entry.line.point: entry.mean for entry in measured}
    plain = {point: value for point, value in accuracy.items() if point.method == "ER"}
    repaired = {point: accuracy.get(point._replace(method="FPF+ER")) for point in plain}
    gains = {f"{p.axis} {p.value}:": value - plain[p] for p, value in repaired.items() if value is not None}
    sizes = [value for point, value in plain.items() if point.axis == "buffer"]
    if gains and len(sizes) > 1:
        claim = "finetuning the last layer (and batch norm) improves ER in all scenarios"
        yield Finding(claim, min(gains.values()) > 0, listed(gains, "+.1f"))
        numbers = " → ".join(f"{size:.1f}" for size in sizes) + " %"
        yield Finding("ER improves with the size of the buffer", sizes == sorted(sizes), numbers)


def draw_buffer_epochs(measured: Sequence[Measured]) -> Figures:
    """Draw the accuracy over the size of the buffer and over the epochs."""
    figures = {}
    names = {"buffer": "examples in the buffer", "epochs": "epochs per task"}
    for axis, members in grouped(measured, lambda entry: str(entry.line.point.axis)).items():
        lines = grouped(members, lambda entry: str(entry.line.point.method))
        series = {name: [(entry.line.point.value, entry.mean) for entry in line] for name, line in lines.items()}
        figures[axis] = charts.curves(series, names[axis], "accuracy (%)", measured[0].line.stream, log="x")
    return figures


ITEMS: Mapping[str, Item] = {
    "parameters": Item("figures of the finetuned groups", "FPF and k-FPF with different groups, class-IL and domain-IL",
                       parameters, judge_parameters, draw_parameters, unused_options=("rows",)),
    "k-tau": Item("figure (a) of k and τ", "k-FPF with different numbers and lengths of finetunings",
                  k_tau, judge_k_tau, draw_k_tau, unused_options=("rows",)),
    "buffer-epochs": Item("figure (b) of buffers and epochs", "ER and FPF + ER with different buffers and epochs",
                          buffer_epochs, judge_buffer_epochs, draw_buffer_epochs, unused_options=("rows", "buffer")),
}  # fmt: skip
