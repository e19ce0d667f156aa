"""docs/studies.md: the paper's further tables and figures, as far as there are records of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median, stdev

from forgetless.experiments import record
from forgetless.paper import dynamics
from forgetless.paper import published as targets
from forgetless.paper.reproduce import Measured, Options
from forgetless.paper.studies import ITEMS
from forgetless.paper.tables import chosen_and_all
from pages.found import DOCS, chosen_rows, measured, read, recorded
from pages.results import table

VGG = "seq-cifar10-vgg11"


def found(item: str, stream: str | None = None) -> list[Measured]:
    """What the records have of what ``forgetless reproduce`` plans for an item."""
    return recorded(ITEMS[item].lines(Options(stream=stream, seeds=5, device="cuda")))


def page() -> str:
    own = measured("seq-pathmnist", 500)
    spread = [stdev(made.accuracy for made in runs) for row, runs in own.items() if row not in ("sgd", "joint")]
    lines = [
        "# Further tables and figures",
        "",
        "The tables and figures of the paper beside [the main one](results.md), from the records in `results`; `python benchmarks/tables.py` writes this page.",
        "Each item is planned by `forgetless reproduce`, which trains just these runs; on one H200, bf16, buffer 500 unless said otherwise. The settings are those that the",
        "main table's search chose, not searched for again here, except for VGG-11 and the learning rates of k-FPF with 50 epochs.",
        "",
        f"Where there is one seed: on Seq-PathMNIST, buffer 500, seeds of a row of the main table have standard deviations of {min(spread):.1f} to {max(spread):.1f} points (SGD and JOINT aside), so that",
        "a smaller difference says little.",
    ]
    for section in (many_epochs, vgg, fpf_all, frozen, parameters, k_tau, buffer_epochs, stages, filters):
        lines += ["", *section()]
    return "\n".join(lines) + "\n"


def pictures() -> None:
    from forgetless.reports import charts as figures

    for item in ("parameters", "k-tau", "buffer-epochs", "bn-dynamics", "filter-dynamics"):
        own = found(item)
        if own and ITEMS[item].findings(own):
            for name, picture in ITEMS[item].draw(own).items():
                figures.save(picture, DOCS, f"study-{item}-{name}", ("svg",))


def many_epochs() -> list[str]:
    own = accuracies(found("many-epochs", "seq-cifar10"))
    searched = read("many-epochs.json")
    rates = " and ".join(
        f"{row['validation_accuracy']:.1f} % with {row['lr']:g} and {row['ft_lr']:g}" for row in searched["rows"]
    )
    lines = [
        "## 50 epochs a task, Seq-CIFAR-10",
        "",
        f"Two pairs of learning rates, of training and finetuning, were compared for k-FPF-CE on the validation split, one seed: {rates} (`benchmarks/records/many-epochs.json`).",
        "k-FPF-KD has the same; the rest, and λ, are those of 5 epochs. `forgetless run … --epochs 50` has those of 5 epochs unless told otherwise.",
        "",
    ]
    return lines + reported("many-epochs --stream seq-cifar10", own, compared(own))


def vgg() -> list[str]:
    own, chosen = measured(VGG, 500), chosen_rows(VGG, 500)
    grid = [entry for searched in chosen.values() if len(searched["grid"]) > 1 for entry in searched["grid"]]
    diverged = [entry["point"]["lr"] for entry in grid if entry["validation_accuracy"] is None]
    fast = sum(lr > 0.01 for lr in diverged)
    tried = sum(entry["point"]["lr"] > 0.01 for entry in grid)
    seeds = len(own["sgd"])
    lost = {row: seeds - len(own.get(row, [])) for row in chosen if len(own.get(row, [])) < seeds}
    return [
        "## VGG-11 on Seq-CIFAR-10",
        "",
        f"Searched for on the validation split, {len(grid)} points, one seed each (`results/searches/{VGG}-500.json`), then {seeds} seeds on all training images;",
        f"torch {own['sgd'][0].versions['torch']}. It has no batch norm, and does not take a ResNet's learning rates: of {tried} points with 0.03 or more {fast} diverged, of {len(grid) - tried} with 0.01 {len(diverged) - fast}.",
        f"So did final runs with the settings that were chosen: {', '.join(f'{count} of {seeds} of {row}' for row, count in lost.items())}. How its weights begin may be the reason, and why most rows",
        "fall short of the paper's: other beginnings have yet to be measured."
        + "".join(
            f" Not the best on validation was taken for {row}: {own['why']}."
            for row, own in chosen.items()
            if "why" in own
        ),
        "",
        "Commands: `python benchmarks/columns.py search --stream seq-cifar10 --network vgg11 --work FOLDER`, then `final --seeds 3`, then `keep`;",
        "one row: `forgetless reproduce mlp-vgg --stream seq-cifar10 --rows k-fpf-ce --device cuda`.",
        "",
        *table(own, targets.find("mlp-vgg", "seq-cifar10", buffer=500)),
    ]


def fpf_all() -> list[str]:
    everything = found("fpf-all")
    searched_pairs, other_pairs = better_pairs(accuracies(everything))
    lines = [
        "## The chosen groups beside all of them",
        "",
        "FPF with the paper's thresholds, and FPF-ALL, which finetunes all parameters; 100 steps each time, k-FPF after every fifth of the stream, as the FLOPs of the paper's table say.",
        "Where S_g chooses the groups that is from the second task on: less often than with all of them, which costs less and repairs less.",
        "The learning rates are those of the main table, or where there is no search, as for A-GEM, iCaRL, FDR and DER, FPF's 0.1: mostly too much for all parameters.",
        f"So where the rate was searched for, with a threshold that took all groups or nearly all, all of them are at least as good in {searched_pairs[0]} of {searched_pairs[1]} pairs; with 0.1 the chosen are better in {other_pairs[0]} of {other_pairs[1]}:",
        "the rates decide more than the groups.",
    ]
    for stream in dict.fromkeys(one.line.stream for one in everything):
        own = [one for one in everything if one.line.stream == stream]
        costs = {one.line.name: one for one in own if one.line.metric == "finetune_tflops"}
        rows = accuracies(own)

        def cost(one: Measured, costs: dict[str, Measured] = costs) -> str:
            other = costs[one.line.name]
            return f"{other.line.target.mean if other.line.target else 0:.1f} / {other.mean:.1f}"

        lines += ["", f"{stream}:", ""]
        lines += reported(
            f"fpf-all --stream {stream}", rows, compared(rows, "TFLOPs of the finetuning, paper / ours", cost)
        )
    return lines if everything else [*lines, "", "Not measured."]


def better_pairs(own: Sequence[Measured]) -> tuple[tuple[int, int], tuple[int, int]]:
    """In how many pairs of chosen and all groups all are at least as good, where the rate was searched for; and better the chosen, where not."""
    searched: list[bool] = []
    others: list[bool] = []
    for part, whole in chosen_and_all(own):
        if part.records[0].settings["method"] in ("sgd", "er", "derpp"):
            searched.append(whole.mean >= part.mean)
        else:
            others.append(part.mean > whole.mean)
    return (sum(searched), len(searched)), (sum(others), len(others))


def frozen() -> list[str]:
    own = found("freeze")
    lines = [
        "## A group frozen after the first task",
        "",
        "ER on Seq-CIFAR-10, accuracy on the tasks so far, paper / ours.",
    ]
    rows: dict[str, list[Measured]] = {}
    for one in own:
        rows.setdefault(one.line.point, []).append(one)
    made = [
        "| frozen | seeds | " + " | ".join(f"task {task}" for task in range(1, 6)) + " |",
        "| --- | --- |" + " --- |" * 5,
    ]
    for group, members in rows.items():
        cells = [f"{one.line.target.mean if one.line.target else 0:.1f} / {one.mean:.1f}" for one in members]
        made.append(f"| {group or 'none'} | {len(members[0].records)} | " + " | ".join(cells) + " |")
    return [*lines, "", *reported("freeze", own, made)]


def parameters() -> list[str]:
    own = found("parameters")
    lines = [
        "## Which groups to finetune",
        "",
        "FPF after ER, and k-FPF-CE, with groups that are named rather than chosen; Basis is batch norm, the last layer and conv1. Accuracy in percent, TFLOPs of the",
        "finetuning, and the share of the parameters. Groups that are named are finetuned from the first task on, so that k-FPF costs more here than in the main table, and gives",
        "other numbers.",
    ]
    if not own:
        return [*lines, "", "Not measured."]
    for stream in dict.fromkeys(one.line.stream for one in own):
        members = [one for one in own if one.line.stream == stream]
        made = [
            "| groups | share | FPF | TFLOPs | k-FPF | TFLOPs | seeds |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name in dict.fromkeys(one.line.point.groups for one in members):
            both = {one.line.point.repair: one for one in members if one.line.point.groups == name}
            cells = [part for kind in ("FPF", "k-FPF") for part in accuracy_and_cost(both.get(kind))]
            seeds = ", ".join(dict.fromkeys(str(len(one.records)) for one in both.values()))
            share = next(iter(both.values())).records[0].share
            made.append(f"| {name} | {share:.2%} | " + " | ".join(cells) + f" | {seeds} |")
        lines += ["", f"{stream}:", "", *reported(f"parameters --stream {stream}", members, made)]
        lines += ["", f"![accuracy by FLOPs for each choice](study-parameters-{stream}.svg)"]
    missing = {"seq-pathmnist", "seq-pacs"} - {one.line.stream for one in own}
    return [*lines, "", f"Not measured: {', '.join(sorted(missing))}."] if missing else lines


def k_tau() -> list[str]:
    own = found("k-tau")
    lines = [
        "## How often and how long",
        "",
        "k-FPF-CE on Seq-PathMNIST by τ, of which k go into the stream, and the steps of a finetuning. Fewer finetunings are made than k, since S_g is known in the second task only.",
    ]
    if not own:
        return [*lines, "", "Not measured."]
    made = plain(own, "finetunings", lambda one: str(len(one.records[0].finetunings)))
    return [*lines, "", *reported("k-tau", own, made), "", "![k and tau](study-k-tau-k-tau.svg)"]


def buffer_epochs() -> list[str]:
    own = found("buffer-epochs")
    lines = [
        "## The buffer, and the epochs",
        "",
        "ER on Seq-PathMNIST, and FPF of batch norm and the last layer after it.",
    ]
    if not ITEMS["buffer-epochs"].findings(own):  # one point of it is among the choices above
        return [*lines, "", "Not measured."]
    drawn = " ".join(f"![by {axis}](study-buffer-epochs-{axis}.svg)" for axis in ("buffer", "epochs"))
    return [*lines, "", *reported("buffer-epochs", own, plain(own)), "", drawn]


def stages() -> list[str]:
    own = found("bn-dynamics")
    by_stage = [dynamics.bn_stages(made) for made in own[0].records]
    rows = [
        [stage, *(f"{mean(one[stage][task] for one in by_stage):.2g}" for task in range(len(changes)))]
        for stage, changes in by_stage[0].items()
    ]
    made = lined(["", *(f"to task {task + 2}" for task in range(len(rows[0]) - 1))], rows)
    return [
        "## Batch norm by stage",
        "",
        "Weights and biases of batch norm, mean absolute change from one task to the next: ResNet-18 on Seq-CIFAR-10, plain SGD, those of the shortcuts left out.",
        "",
        *reported("bn-dynamics", own, made),
        "",
        "![batch norm by stage](study-bn-dynamics-bn.svg)",
    ]


def filters() -> list[str]:
    own = found("filter-dynamics")
    changes = own[0].records[0].details["filters"]
    rows = []
    for layer, moved in changes.items():
        within, across = (sorted(moved[kind]) for kind in ("within", "across"))
        tenth = across[len(across) * 9 // 10]
        cells = [f"{median(within):.2g}", f"{median(across):.2g}", f"{tenth:.2g}", f"{across[-1]:.2g}"]
        rows.append([layer, str(len(across)), *cells])
    names = ["", "filters", "median within a task", "median as it changes", "exceeded by a tenth then", "largest then"]
    return [
        "## Single filters",
        "",
        "Mean absolute change of each filter of VGG-11 on Seq-CIFAR-10, plain SGD: from epoch to epoch of a task, and from the last of a task to the first of the next.",
        "",
        *reported("filter-dynamics", own, lined(names, rows)),
        "",
        "![how the changes of filters are distributed](study-filter-dynamics-filters.svg)",
    ]


def accuracies(own: Sequence[Measured]) -> list[Measured]:
    return [one for one in own if one.line.metric == "accuracy"]


def accuracy_and_cost(one: Measured | None) -> tuple[str, str]:
    if one is None:
        return "–", "–"
    return one.shown, f"{mean(made.flops.get('finetune', 0) for made in one.records) / 1e12:.1f}"


def compared(own: Sequence[Measured], further: str = "", cell: Callable[[Measured], str] = lambda one: "") -> list[str]:
    """Rows with the paper's numbers beside ours."""
    names = ["", "paper", "ours", "seeds", "difference", "in s.e.", "TFLOPs", *([further] if further else [])]
    rows = []
    for one in own:
        target = one.line.target
        assert target is not None
        errors = "–" if one.standard_errors is None else f"{one.standard_errors:+.1f}"
        cells = [
            one.line.name.partition(", ")[0],
            f"{target.mean:.2f} ± {target.std:.2f}",
            one.shown,
            str(len(one.records)),
        ]
        rows.append([*cells, f"{one.difference:+.2f}", errors, f"{one.tflops:.0f}", *([cell(one)] if further else [])])
    return lined(names, rows)


def plain(own: Sequence[Measured], further: str = "", cell: Callable[[Measured], str] = lambda one: "") -> list[str]:
    """Rows that the paper draws, and gives no numbers of."""
    names = ["", "accuracy", "seeds", "TFLOPs", *([further] if further else [])]
    rows = [[one.line.name, one.shown, str(len(one.records)), f"{one.tflops:.0f}"] for one in own]
    return lined(names, [[*row, cell(one)] if further else row for row, one in zip(rows, own, strict=True)])


def lined(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " --- |" * (len(names) - 1)]
    return lines + ["| " + " | ".join(cells) + " |" for cells in rows]


def reported(command: str, own: Sequence[Measured], rows: Sequence[str]) -> list[str]:
    """Where the numbers come from, the numbers, and what they say of the paper's claims."""
    if not own:
        return ["Not measured."]
    records: list[record.Record] = [made for one in own for made in one.records]
    seeds = max(len(one.records) for one in own)
    minutes = sum(made.seconds["total"] for made in {made.id: made for made in records}.values()) / 60
    took = f"{minutes:.0f} minutes" if minutes > 2 else f"{60 * minutes:.0f} seconds"
    item = command.partition(" ")[0]
    seeded = "" if "seeds" in ITEMS[item].unused_options else f" --seeds {seeds}"
    return [
        f"`forgetless reproduce {command}{seeded} --device cuda`; torch {records[0].versions['torch']}, {took} in sum, up to eight runs side by side.",
        "",
        *rows,
        "",
        *(f"- {'(one seed) ' if seeds == 1 else ''}{claim}" for claim in ITEMS[item].findings(own)),
    ]
