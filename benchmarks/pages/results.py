"""docs/results.md: every table and figure of the paper that was measured, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, stdev

from forgetless.experiments import record
from forgetless.experiments.settings import Settings
from forgetless.experiments.sweep import Planned
from forgetless.paper import dynamics
from forgetless.paper import published as targets
from forgetless.paper.reproduce import Line, Measured, Options
from forgetless.paper.studies import ITEMS
from pages.found import (
    COLUMNS,
    MASKED,
    REPAIRABLE,
    chosen_rows,
    confirmed,
    finetuned,
    listed,
    measured,
    recorded,
    rows,
    settings,
    spread,
    standard_error,
    tflops,
    trained_elsewhere,
    uncropped,
    unfinished,
)

BEFORE_MASKED = (
    " {those} of `masked`, and their search, were made before it was\na method, by SGD with an option to try it: their records say version 0.5.0, "
    "and method, options and id in them were rewritten to what runs the same now."
)


def page() -> str:
    mlp = rows("seq-mnist")
    lines = [
        "# Results",
        "",
        "Every number below comes from a record in `benchmarks/records` or `results`, which holds settings, versions and device;",
        "`python benchmarks/tables.py` writes this page, and a test checks that it is what the records give.",
        "",
        "## Seq-MNIST, MLP, buffer 500, one epoch",
        "",
    ]
    first = next(iter(mlp.values()))[0]
    runs = sum(map(len, mlp.values()))
    minutes = sum(made.seconds["total"] for found in mlp.values() for made in found) / 60
    lines += [
        "The paper's column for the MLP. Settings were chosen on the validation split (10 % of the training images),",
        "mean of two seeds for each point of the grids in `benchmarks/seq_mnist.py`, of five for FPF's; the whole grid is in",
        "`results/searches/seq-mnist-500.json`. FPF was searched with the thresholds 1, at which S_g takes the last layer, and 0.5,",
        "at which it takes the last two; k-FPF with the paper's 0.3, which here takes all three. The chosen point of each row was",
        "then trained on all training images with five seeds. Accuracy in percent, mean ± standard deviation.",
        "",
        f"Device: {first.device}, one thread a run, {minutes:.0f} minutes in all for the {runs} final runs; "
        f"torch {first.versions['torch']}.",
        "",
        "Commands: `python benchmarks/seq_mnist.py search --work FOLDER`, then",
        "`python benchmarks/seq_mnist.py final --work FOLDER`.",
        "",
        "| | paper | ours | difference | GFLOPs | finetuned groups | settings |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label, target in targets.find("mlp-vgg", "seq-mnist", buffer=500).items():
        paper, deviation, found = target.mean, target.std, mlp[label]
        accuracies = [made.accuracy for made in found]
        gflops = mean(sum(made.flops.values()) for made in found) / 1e9
        lines.append(
            f"| {label} | {paper:.2f} ± {deviation:.2f} | {spread(accuracies, 2)} | "
            f"{mean(accuracies) - paper:+.2f} | {gflops:.0f} | {finetuned(found) or '–'} | {settings(found)} |"
        )
    rot = rows("rot-mnist")
    lines += [
        "",
        "## Rotated MNIST, MLP, buffer 500, one epoch",
        "",
        "20 tasks, the DER authors' settings, three seeds; their published accuracies beside ours. Command:",
        "`python benchmarks/rot_mnist.py --work FOLDER`.",
        "",
        "| | DER authors | ours | difference | settings |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, target in targets.find("der-authors", "rot-mnist", buffer=500).items():
        published, found = target.mean, rot[label]
        accuracies = [made.accuracy for made in found]
        lines.append(
            f"| {label} | {published:.2f} | {spread(accuracies, 2)} | "
            f"{mean(accuracies) - published:+.2f} | {settings(found)} |"
        )
    lines += rotated(rot)
    for stream, buffer in COLUMNS:
        lines += column(stream, buffer)
    lines += after_each_task()
    lines += moving()
    return "\n".join(lines) + "\n"


def rotated(others: dict[str, list[record.Record]]) -> list[str]:
    """k-FPF on Rotated MNIST beside DER and DER++: a column of the paper's table of many epochs."""
    found = others
    lines = [
        "",
        "k-FPF on it beside DER and DER++, one epoch as in the paper, whose table of 50 epochs has it. Its settings were chosen on the validation",
        "split, one seed for each point (`results/searches/rot-mnist-500.json`). On a CPU; commands: `python benchmarks/columns.py search --stream",
        "rot-mnist --device cpu --work FOLDER`, then `final`, then `keep`; one row: `forgetless reproduce many-epochs --stream rot-mnist --rows k-fpf-kd`.",
        "",
        "| | paper | ours | seeds | difference | TFLOPs | settings |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label, target in targets.find("many-epochs", "rot-mnist", buffer=500).items():
        runs = found[label]
        values = [made.accuracy for made in runs]
        flops = tflops(runs)
        lines.append(
            f"| {label} | {target.mean:.2f} ± {target.std:.2f} | {spread(values, 2)} | {len(values)} | "
            f"{mean(values) - target.mean:+.2f} | {flops:.2f} | {settings(runs)} |"
        )
    return lines


def column(stream: str, buffer: int) -> list[str]:
    """A column of the main table, as far as it was measured."""
    found = measured(stream, buffer)
    first = next(iter(found.values()))[0]
    minutes = sum(made.seconds["total"] for runs in found.values() for made in runs) / 60
    masked = found.get(MASKED, [])
    early = sum(made.versions["forgetless"] == "0.5.0" for made in masked)
    chosen, elsewhere = chosen_rows(stream, buffer), trained_elsewhere(stream, buffer)
    carried = [row for row, own in chosen.items() if "fpf" in row and own["grid"][0]["validation_accuracy"] is None]
    lines = [
        "",
        f"## {stream}, ResNet-18, buffer {buffer}, five epochs a task",
        "",
        f"One H200 ({first.device}), bf16, torch {first.versions['torch']}. The settings of the methods are the DER authors'"
        + {
            "seq-organamnist": " for Seq-CIFAR-10",
            "seq-pathmnist": " for Seq-CIFAR-10",
            "seq-pacs": " for Seq-TinyImageNet",
        }.get(stream, "")
        + " but for what was searched for:",
        f"that, and those of FPF and k-FPF, were chosen on the validation split, one seed for each point (`results/searches/{stream}-{buffer}.json`",
        "has them all); tests are of runs on all training images. A method's own row is its accuracy before FPF's finetuning, in the same runs",
        "(`tests/training/test_loop.py` shows that they are the same)."
        + "".join(
            f" The best points of {row} were compared with {seeds} seeds on validation (`columns.py confirm`)."
            for row, seeds in confirmed(stream, buffer).items()
        )
        + "".join(
            f" {row} has runs of its own, with settings chosen by its accuracy alone."
            for row in found
            if row in REPAIRABLE
        )
        + (f" Not searched for with this buffer: {', '.join(carried)}." if carried else "")
        + (
            f" {', '.join(row.removeprefix('fpf+') for row in elsewhere)}: of runs of [another table](studies.md#the-chosen-groups-beside-all-of-them), not searched for."
            if elsewhere
            else ""
        ),
        *(
            f"The search has since found a better point for {row} ({listed(point)}: {best:.1f} % on validation, "
            f"{taken:.1f} % with the one below), whose final runs are missing."
            for row, (point, best, taken) in unfinished(stream, buffer).items()
        ),
        *(
            f"Finetuned on crops (`ft_pad`), which the paper does not have: {row}; on images as in training {spread(bare, 2)}."
            for row, bare in uncropped(stream, buffer).items()
        ),
        f"The final runs, up to eight side by side, took {minutes:.0f} minutes in sum."
        + (BEFORE_MASKED.format(those="Those" if early == len(masked) else f"{early} of those") if early else "")
        + (
            " Left out of the file are eleven points with CutMix or averaged weights, options that were not kept."
            if (stream, buffer) == COLUMNS[0]
            else ""
        ),
        "",
        f"Commands: `python benchmarks/columns.py search --stream {stream} --buffer {buffer} --work FOLDER`, then `final`, then `keep`;",
        f"one row: `forgetless reproduce table1 --stream {stream} --rows k-fpf-ce --buffer {buffer} --device cuda`"
        + (
            f"; the row that is not the paper's:\n`forgetless run {stream} masked --k-fpf --buffer {buffer} --device cuda`."
            if MASKED in found
            else "."
        ),
        "",
        f"![accuracy by FLOPs](cost-{stream}-{buffer}.svg)",
        "",
    ]
    return lines + table(found, targets.find("table1", stream, buffer=buffer), elsewhere)


def table(
    found: dict[str, list[record.Record]],
    paper_rows: Mapping[str, targets.Target],
    elsewhere: Mapping[str, list[record.Record]] | None = None,
) -> list[str]:
    """The rows of the paper that there are records of; a method's own from those of FPF after it, if need be elsewhere."""
    lines = [
        "| | paper | ours | seeds | difference | in s.e. | TFLOPs | finetuned groups | settings |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]

    def line(
        label: str, target: targets.Target | None, values: list[float], flops: float, groups: str, said: str
    ) -> str:
        paper, difference, errors = "–", "–", "–"
        if target is not None:
            paper = f"{target.mean:.2f} ± {target.std:.2f}"
            gap = mean(values) - target.mean
            difference = f"{gap:+.2f}"
            errors = f"{gap / standard_error(target, values):+.1f}" if len(values) > 1 else "–"
        deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        ours = f"{mean(values):.2f}{deviation}"
        return f"| {label} | {paper} | {ours} | {len(values)} | {difference} | {errors} | {flops:.0f} | {groups} | {said} |"

    for label, target in paper_rows.items():
        repaired = found.get(f"fpf+{label}") or (elsewhere or {}).get(f"fpf+{label}")
        if label in found:
            own = found[label]
            flops = tflops(own)
            values = [made.accuracy for made in own]
            lines.append(line(label, target, values, flops, finetuned(own) or "–", settings(own)))
            for row in sorted(found) if label == "k-fpf-kd" else ():
                if row.startswith("k-fpf") and row not in paper_rows:
                    own = found[row]
                    values = [made.accuracy for made in own]
                    lines.append(line(row, None, values, tflops(own), finetuned(own), settings(own)))
        elif repaired:
            values = [mean(made.before_finetuning or []) for made in repaired]
            flops = mean(sum(made.flops.values()) - made.flops["finetune"] for made in repaired) / 1e12
            lines.append(line(label, target, values, flops, "–", settings(repaired).partition(", ft_lr")[0]))
    return lines


def after_each_task() -> list[str]:
    """The paper's tables of the accuracy after each task, as far as there are records."""
    lines = [
        "",
        "## After each task",
        "",
        "The paper's tables of the accuracy on the tasks so far, after each of them: paper / ours, means. k-FPF's rows are of runs that are finetuned after each",
        "task and go on as if they had not been, `forgetless reproduce anytime --stream seq-pacs --rows k-fpf-ce --device cuda`; those of the methods are of the",
        "runs above.",
    ]
    for stream in ("seq-pathmnist", "seq-pacs"):
        paper: dict[str, list[float]] = {}
        for target in targets.targets():
            if target.table == "anytime" and target.stream == stream:
                paper.setdefault(target.label, []).append(target.mean)
        found = measured(stream, 500) | trained_elsewhere(stream, 500)
        as_if_over = measured(stream, 500, anytime=True)
        lines += [
            "",
            f"| {stream}, buffer 500 | " + " | ".join(f"task {task}" for task in range(1, 5)) + " |",
            "| --- |" + " --- |" * 4,
        ]
        for label, theirs in paper.items():
            finetuned_too = label.startswith("k-fpf")
            if runs := as_if_over.get(label) if finetuned_too else found.get(f"fpf+{label}"):
                ours = [mean(made.anytime[task] for made in runs) for task in range(len(theirs))]
                if not finetuned_too:
                    ours[-1] = mean(mean(made.before_finetuning or []) for made in runs)
                cells = [f"{one:.1f} / {other:.1f}" for one, other in zip(theirs, ours, strict=True)]
                lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def panels() -> dict[str, tuple[str, list[record.Record]]]:
    """Those of the paper's Figure 1 that the records have, each with what its pictures are called after."""
    found = {
        "VGG-11 on Seq-CIFAR-10 (panels a, b)": ("seq-cifar10-vgg11", measured("seq-cifar10-vgg11", 500)["sgd"]),
        "ResNet-18 on Seq-CIFAR-10 (panels c, d)": ("seq-cifar10", measured("seq-cifar10", 500)["sgd"]),
        "MLP on Seq-MNIST (panel e)": ("seq-mnist", rows("seq-mnist")["sgd"]),
        "ResNet-18 on Seq-OrganAMNIST (f)": ("seq-organamnist", measured("seq-organamnist", 500)["sgd"]),
    }
    lines = ITEMS["dynamics"].lines(Options(device="cuda"))
    for one in recorded([line for line in lines if line.name.startswith("g: ")]):
        found["ResNet-18 on Seq-CIFAR-10, ER with a buffer of 2,000 (g)"] = ("seq-cifar10-er", list(one.records))
    return found | {"ResNet-18 on Seq-PACS (h)": ("seq-pacs", measured("seq-pacs", 500)["sgd"])}


def moving() -> list[str]:
    """Which groups move, and what the paper says of it: Figure 1."""
    lines = [
        "",
        "## Which groups move",
        "",
        "The paper's Figure 1 from the same records, plain SGD unless said otherwise: how far each group moves over an epoch, and from the end of an epoch to that of",
        "the same epoch of the next task. Groups with their means over seeds; the pictures are of seed 0. One panel: `forgetless reproduce dynamics --stream seq-cifar10 --device cuda`.",
    ]
    for name, (stem, runs) in panels().items():
        planned = tuple(Planned(Settings.from_dict(made.settings), {}) for made in runs)
        claims = dynamics.judge_group_dynamics([Measured(Line(name, planned), tuple(runs))])
        lines += ["", f"**{name}**, {len(runs)} seeds:", ""]
        lines += [f"- {str(claim).replace(f'{name}: ', '')}" for claim in claims]
        pictures = [stem, f"{stem}-tasks"] if runs[0].settings["epochs"] > 1 else [f"{stem}-tasks"]
        lines += ["", " ".join(f"![changes of the groups](dynamics-{picture}.svg)" for picture in pictures)]
    return lines
