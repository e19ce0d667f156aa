"""Compute the values of docs/choice.md: which score of a group predicts what repairing the group recovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

from forgetless.repair.displacement import COVER
from forgetless.repair.final import ENOUGH
from oracle import SETS, correlation, set_of, spearman
from pages.rows import benchmark_record
from pages.template import markdown_table

Run = Mapping[str, Any]


class Score(NamedTuple):
    """How a score is called and computed."""

    name: str
    formula: str


DEFAULT = "buffer.taylor"  # the score of forgetless
SCORES = {
    "trial15": Score("short trial", "fall of the held-out loss"),
    "buffer.natural0.01": Score("natural gradient", "gᵀ(F + λ)⁻¹g, λ = 0.01 tr F"),
    "old.natural0.001": Score("natural gradient, old task", "gᵀ(F + λ)⁻¹g, λ = 0.001 tr F"),
    "buffer.line": Score("line search along the gradient", "fall of the loss"),
    "buffer.taylor": Score("displacement times gradient", "Σ Δθ·g"),
    "l2": Score("Euclidean displacement", "‖Δθ‖"),
    "relative": Score("relative displacement", "‖Δθ‖ / ‖θ_A‖"),
    "eq1": Score("mean change, Eq. 1", "mean of \\|Δθ\\|, by layer"),
    "buffer.fisher": Score("Fisher-weighted displacement", "Σ F·Δθ²"),
}
COMPARISONS = {
    "equal": Score("the same score for every group", "1"),
    "repeat": Score("the oracle, repeated", "recovered loss"),
}
SET_NAMES = {name: SCORES[name].name if name in SCORES else f"`{name}`" for name in SETS}
LORA = "GPT with LoRA, AdamW"


def values() -> dict[str, Any]:
    """Return the values of the template."""
    recorded = benchmark_record("oracle.json")
    runs = recorded["runs"]
    pairs = pair_names(runs)
    candidates = list(runs[0]["scores"])
    tables = {
        per: {score: by_pair(runs, score, per == "parameter") for score in [*candidates, *COMPARISONS]}
        for per in ("group", "parameter")
    }
    means = {per: {score: mean(table[score].values()) for score in table} for per, table in tables.items()}
    lowest = {score: min(pairs, key=tables["group"][score].__getitem__) for score in SCORES}
    return {
        "record": recorded,
        "pairs": pairs,
        "seeds": len(runs) // len(pairs),
        "counts": [len(run["parameters"]) for run in runs],
        "candidates": candidates,
        "means": means,
        "best": {per: max(candidates, key=table.__getitem__) for per, table in means.items()},
        "quarter": mean(by_pair(runs, "short").values()),
        "eq1_undivided": mean(eq1_undivided(run) for run in runs),
        "left_out": {per: left_out(table, candidates) for per, table in tables.items()},
        "scores": len(SCORES),
        "lowest_with_lora": sum(pair == LORA for pair in lowest.values()),
        "hardest": min(pairs, key=lambda pair: mean(tables["group"][score][pair] for score in candidates)),
        "lora": LORA,
        "convolutional": convolutional(runs),
        "lora_default": tables["group"][DEFAULT][LORA],
        "lora_repeat": tables["group"]["repeat"][LORA],
        "median_alone": alone(runs)[1],
        "cover": COVER,
        "enough": ENOUGH,
        "correlations": correlation_table(tables, ordered(runs)),
        "by_pair": pair_table(tables["group"], ordered(runs)),
        "every_score": every_score_table(tables, candidates),
        "sets": {score: choices(runs, score) for score in SETS},
        "set_table": set_table(runs),
        "sets_by_pair": sets_by_pair_table(runs),
        "forgotten": forgotten_table(runs),
    }


def pair_names(runs: Sequence[Run]) -> list[str]:
    """Return the pairs of network and optimizer, in order."""
    return list(dict.fromkeys(run["pair"] for run in runs))


def by_pair(runs: Sequence[Run], score: str, per_parameter: bool = False) -> dict[str, float]:
    """Return the mean rank correlation of a score with the oracle for each pair."""
    return {
        pair: mean(correlation(run, score, per_parameter) for run in runs if run["pair"] == pair)
        for pair in pair_names(runs)
    }


def ordered(runs: Sequence[Run]) -> list[str]:
    """Return the main scores, the best first."""
    return sorted(SCORES, key=lambda score: -mean(by_pair(runs, score).values()))


def eq1_undivided(run: Run) -> float:
    """Return the rank correlation of Eq. 1 as it is with the recovered loss per parameter."""
    per_parameter = [mean(run["recovered"][group]) / size for group, size in run["parameters"].items()]
    return spearman([run["scores"]["eq1"][group] for group in run["parameters"]], per_parameter)


def left_out(table: Mapping[str, Mapping[str, float]], candidates: Sequence[str]) -> float:
    """Return the mean correlation on each pair of the score that is best on the other pairs."""
    pairs = list(table[candidates[0]])

    def elsewhere(score: str, pair: str) -> float:
        return mean(table[score][other] for other in pairs if other != pair)

    return mean(table[max(candidates, key=lambda score: elsewhere(score, pair))][pair] for pair in pairs)


Tables = Mapping[str, Mapping[str, Mapping[str, float]]]  # per group or parameter, by score and by pair


def cells(tables: Tables, score: str) -> list[str]:
    """Return the mean and the lowest correlation over the pairs, in total and per parameter."""
    columns = [list(tables[per][score].values()) for per in ("group", "parameter")]
    return [f"{value:.2f}" for column in columns for value in (mean(column), min(column))]


def correlation_table(tables: Tables, scores: Sequence[str]) -> str:
    """Return the correlations of the main scores, the best first."""
    rows = []
    for score in [*scores, *COMPARISONS]:
        name, formula = (SCORES | COMPARISONS)[score]
        bold = "**" if score in (DEFAULT, "eq1") else ""
        rows.append([f"{bold}{name}{bold}", formula, *cells(tables, score)])
    return markdown_table(["score", "formula", "in total", "lowest pair", "per parameter", "lowest pair"], rows)


def pair_table(table: Mapping[str, Mapping[str, float]], scores: Sequence[str]) -> str:
    """Return the correlation of the main scores for each pair."""
    names = {score: (SCORES | COMPARISONS)[score].name for score in [*scores, "repeat"]}
    rows = [[name, *(f"{value:.2f}" for value in table[score].values())] for score, name in names.items()]
    return markdown_table(["score", *table["repeat"]], rows)


def every_score_table(tables: Tables, candidates: Sequence[str]) -> str:
    """Return the correlations of every score, the best first."""
    best_first = sorted(candidates, key=lambda score: -mean(tables["group"][score].values()))
    rows = [[f"`{score}`", *cells(tables, score)] for score in best_first]
    return markdown_table(["score", "in total", "lowest pair", "per parameter", "lowest pair"], rows)


def whole(run: Run) -> list[float]:
    """Return the measurements of the repair of all groups."""
    measurements: list[float] = run["sets"]["+".join(run["parameters"])]
    return measurements


def recovered(run: Run, groups: Sequence[str]) -> float:
    """Return the loss that a repair of these groups recovers, as a share of what a repair of all recovers."""
    repetitions: list[float] = run["recovered"][groups[0]] if len(groups) == 1 else run["sets"]["+".join(groups)][:2]
    return mean(repetitions) / mean(whole(run)[:2])


def alone(runs: Sequence[Run]) -> list[float]:
    """Return what the worst, the median and the best group of a run recovers alone, averaged over the runs."""
    shares = [[recovered(run, [group]) for group in run["parameters"]] for run in runs]
    return [mean(summary(run) for run in shares) for summary in (min, median, max)]


class Choice(NamedTuple):
    """A repair of the groups with the highest scores in a run: the share of parameters and of the recovered loss."""

    pair: str
    every: bool  # whether the set holds all groups
    parameters: float
    recovered: float


def choices(runs: Sequence[Run], score: str) -> list[Choice]:
    """Return the repair of the groups with the highest scores for each run."""
    repairs = []
    for run in runs:
        groups = set_of(run["scores"][score], COVER)
        parameters = sum(run["parameters"][group] for group in groups) / sum(run["parameters"].values())
        repairs.append(Choice(run["pair"], len(groups) == len(run["parameters"]), parameters, recovered(run, groups)))
    return repairs


def convolutional(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the groups that Eq. 1 chooses in the ResNets and U-Nets, and their largest share of the parameters."""
    networks = [run for run in runs if "Net" in run["pair"]]
    return {
        "runs": len(networks),
        "groups": sorted({group for run in networks for group in set_of(run["scores"]["eq1"], COVER)}),
        "parameters": max(choice.parameters for choice in choices(networks, "eq1")),
    }


def set_table(runs: Sequence[Run]) -> str:
    """Return what the groups with the highest scores recover, relative to all groups."""
    rows = []
    for score, name in SET_NAMES.items():
        _, every, parameters, recoveries = zip(*choices(runs, score), strict=True)
        rows.append([
            name, f"{100 * mean(parameters):.0f} %", f"{100 * mean(recoveries):.0f} %",
            f"{100 * min(recoveries):.0f} %", f"{sum(every)} of {len(every)}",
            f"{sum(share >= ENOUGH for share in recoveries)} of {len(recoveries)}",
        ])  # fmt: skip
    header = [
        "score",
        "parameters",
        "recovered",
        "lowest run",
        "all groups",
        f"at least {100 * ENOUGH:.0f} %",
    ]
    return markdown_table(header, rows)


def sets_by_pair_table(runs: Sequence[Run]) -> str:
    """Return the share of parameters and of the recovered loss of the sets of two scores, for each pair."""
    rows = []
    for pair in pair_names(runs):
        repairs = [[choice for choice in choices(runs, score) if choice.pair == pair] for score in (DEFAULT, "eq1")]
        rows.append([pair, *(
            f"{100 * mean(c.parameters for c in found):.1f} → {100 * mean(c.recovered for c in found):.0f} %"
            for found in repairs
        )])  # fmt: skip
    return markdown_table(["pair", SCORES[DEFAULT].name, SCORES["eq1"].name], rows)


def forgotten_table(runs: Sequence[Run]) -> str:
    """Return the loss and the accuracy on the old task before and after the new one, and after a repair of all."""
    rows = []
    for pair in pair_names(runs):
        of_pair = [run for run in runs if run["pair"] == pair]
        losses = [[run["before"][0], run["after"][0], run["after"][0] - mean(whole(run)[:2])] for run in of_pair]
        accuracies = [[run["before"][2], run["after"][2], whole(run)[2]] for run in of_pair]
        columns = [" → ".join(f"{mean(column):.{digits}f}" for column in zip(*measured, strict=True))
                   for measured, digits in ((losses, 2), (accuracies, 0))]  # fmt: skip
        worst, _, best = alone(of_pair)
        share = f"{100 * worst:.0f} to {100 * best:.0f} %"
        rows.append([pair, f"{sum(of_pair[0]['parameters'].values()):,}", *columns, share])
    return markdown_table(["pair", "trained parameters", "loss", "accuracy, %", "recovered by one group"], rows)
