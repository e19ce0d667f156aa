"""Compute the values of docs/choice.md: which score of a group predicts what repairing the group recovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from oracle import SETS, correlation, set_of
from pages.rows import benchmark_record
from pages.template import markdown_table

Run = Mapping[str, Any]


class Score(NamedTuple):
    """How a score is called and computed, and whether it needs the weights before the shift."""

    name: str
    formula: str
    needs_before: bool


DEFAULT = "buffer.adam_line"
SCORES = {
    "eq1": Score("mean change, Eq. 1", "mean of \\|Δ\\|, by layer", True),
    "relative": Score("relative displacement", "‖Δ‖ / ‖θ_A‖", True),
    "l1": Score("total displacement", "Σ\\|Δ\\|", True),
    "l2": Score("Euclidean displacement", "‖Δ‖", True),
    "buffer.taylor": Score("displacement times gradient", "Σ Δ·g", True),
    "buffer.trapezoid": Score("the same, gradients of both ends", "Σ Δ·(g_A + g) / 2", True),
    "buffer.midpoint": Score("the same, gradient of the middle", "Σ Δ·g_mid", True),
    "buffer.path": Score("the same, five points", "Σ Δ·∫g", True),
    "buffer.fisher": Score("Fisher-weighted displacement", "Σ F·Δ²", True),
    "buffer.ewc": Score("the same, Fisher at θ_A", "Σ F_A·Δ²", True),
    "size": Score("number of parameters", "n", False),
    "buffer.norm2": Score("squared gradient", "‖g‖²", False),
    "buffer.norm2_per_parameter": Score("squared gradient per parameter", "‖g‖² / n", False),
    "buffer.absolute": Score("absolute gradient", "Σ\\|g\\|", False),
    "buffer.newton": Score("gradient and curvature", "‖g‖⁴ / g'Hg", False),
    "buffer.adam": Score("decrease promised to Adam", "Σ g² / √F", False),
    "buffer.saliency": Score("gradient times weight", "Σ\\|g·θ\\|", False),
    "buffer.halves": Score("gradients of two halves", "Σ g₁·g₂", False),
    "buffer.natural0.1": Score("natural gradient", "g'(F + λ)⁻¹g", False),
    "buffer.line": Score("line search along the gradient", "measured", False),
    "buffer.adam_line": Score("line search along Adam's direction", "measured", False),
    "trial5": Score("five steps, best of eight settings", "measured", False),
    "trial15": Score("fifteen steps, best of eight settings", "measured", False),
}


def values() -> dict[str, Any]:
    """Return the values of the template."""
    recorded = benchmark_record("oracle.json")
    runs = recorded["runs"]
    pairs = pair_names(runs)
    sets = {score: choices(runs, score) for score in SETS}
    return {
        "record": recorded,
        "pairs": pairs,
        "seeds": len(runs) // len(pairs),
        "default": SCORES[DEFAULT],
        "default_mean": mean(by_pair(runs, DEFAULT).values()),
        "eq1_mean": mean(by_pair(runs, "eq1").values()),
        "taylor_mean": mean(by_pair(runs, "buffer.taylor").values()),
        "repeat_mean": mean(by_pair(runs, "repeat").values()),
        "best_share": best_group_share(runs),
        "correlations": correlation_table(runs),
        "by_pair": pair_table(runs),
        "groups": group_tables(runs),
        "sets": set_table(sets),
        "forgotten": forgotten_table(runs),
    }


def pair_names(runs: Sequence[Run]) -> list[str]:
    """Return the pairs of network and optimiser, in order."""
    return list(dict.fromkeys(run["pair"] for run in runs))


def by_pair(runs: Sequence[Run], score: str, per_parameter: bool = False) -> dict[str, float]:
    """Return the mean rank correlation of a score with the oracle for each pair."""
    return {
        pair: mean(correlation(run, score, per_parameter) for run in runs if run["pair"] == pair)
        for pair in pair_names(runs)
    }


def ordered(runs: Sequence[Run]) -> list[str]:
    """Return the scores, the best first."""
    return sorted(SCORES, key=lambda score: -mean(by_pair(runs, score).values()))


def correlation_table(runs: Sequence[Run]) -> str:
    """Return the correlations of every score, the best first."""
    rows = []
    for score in ordered(runs):
        name, formula, needs_before = SCORES[score]
        correlations = list(by_pair(runs, score).values())
        per_parameter = mean(by_pair(runs, score, per_parameter=True).values())
        bold = "**" if score in (DEFAULT, "eq1") else ""
        rows.append([
            f"{bold}{name}{bold}", formula, "yes" if needs_before else "no",
            f"{mean(correlations):.2f} ± {stdev(correlations):.2f}", f"{min(correlations):.2f}", f"{per_parameter:.2f}",
        ])  # fmt: skip
    return markdown_table(["score", "formula", "needs θ_A", "in total", "lowest pair", "per parameter"], rows)


def pair_table(runs: Sequence[Run]) -> str:
    """Return the correlation of every score for each pair, and of the oracle with a repetition."""
    names = {score: SCORES[score].name for score in ordered(runs)}
    names |= {"restored": "restoring the group to θ_A", "repeat": "the oracle, repeated with other batches"}
    rows = [[name, *(f"{value:.2f}" for value in by_pair(runs, score).values())] for score, name in names.items()]
    return markdown_table(["score", *pair_names(runs)], rows)


def whole(run: Run) -> list[float]:
    """Return the measurements of the repair of all groups."""
    measurements: list[float] = run["sets"]["+".join(run["parameters"])]
    return measurements


def recovered(run: Run, groups: Sequence[str]) -> float:
    """Return the loss that a repair of these groups recovers, as a share of what a repair of all recovers."""
    if not groups:
        return 0.0
    alone = run["recovered"][groups[0]] if len(groups) == 1 else run["sets"]["+".join(groups)][:2]
    return mean(alone) / mean(whole(run)[:2])


def best_group_share(runs: Sequence[Run]) -> float:
    """Return what the best single group recovers, as a share of what all recover, averaged over the runs."""
    return mean(max(recovered(run, [group]) for group in run["parameters"]) for run in runs)


def group_tables(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return for each pair what each group recovers alone, as a share of what all groups recover together."""
    tables = []
    for pair in pair_names(runs):
        of_pair = [run for run in runs if run["pair"] == pair]
        total = sum(of_pair[0]["parameters"].values())
        rows = [
            [
                group, f"{100 * size / total:.2f} %",
                f"{100 * mean(recovered(run, [group]) for run in of_pair):.0f} %",
                f"{100 * mean(run['restored'][group] / mean(whole(run)[:2]) for run in of_pair):.0f} %",
            ]
            for group, size in of_pair[0]["parameters"].items()
        ]  # fmt: skip
        header = ["group", "parameters", "recovered by repairing it alone", "by restoring it"]
        tables.append({"pair": pair, "table": markdown_table(header, rows)})
    return tables


def choices(runs: Sequence[Run], score: str) -> list[tuple[float, float]]:
    """Return the share of parameters and of the recovery of the groups that hold 90 % of a score, for each run."""
    shares = []
    for run in runs:
        groups = set_of(run["scores"][score])
        parameters = sum(run["parameters"][group] for group in groups) / sum(run["parameters"].values())
        shares.append((parameters, recovered(run, groups)))
    return shares


def set_table(sets: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return what the groups that hold 90 % of a score recover, relative to all groups."""
    rows = []
    for score, shares in sets.items():
        parameters, recoveries = zip(*shares, strict=True)
        rows.append([
            SCORES[score].name, f"{100 * mean(parameters):.0f} %", f"{100 * mean(recoveries):.0f} %",
            f"{100 * min(recoveries):.0f} %", f"{sum(share >= 1 for share in recoveries)} of {len(recoveries)}",
        ])  # fmt: skip
    header = ["score", "parameters", "recovered", "lowest run", "runs as good as all"]
    return markdown_table(header, rows)


def forgotten_table(runs: Sequence[Run]) -> str:
    """Return the loss and the accuracy on the old task before and after the new one, and after a repair of all."""
    rows = []
    for pair in pair_names(runs):
        of_pair = [run for run in runs if run["pair"] == pair]
        losses = [[run["before"][0], run["after"][0], run["after"][0] - mean(whole(run)[:2])] for run in of_pair]
        accuracies = [[run["before"][2], run["after"][2], whole(run)[2]] for run in of_pair]
        cells = [" → ".join(f"{mean(column):.{digits}f}" for column in zip(*values, strict=True))
                 for values, digits in ((losses, 2), (accuracies, 0))]  # fmt: skip
        rows.append([pair, f"{sum(of_pair[0]['parameters'].values()):,}", *cells])
    return markdown_table(["pair", "trained parameters", "loss", "accuracy, %"], rows)
