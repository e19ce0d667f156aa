"""Compute the values of docs/smollm2.md: ways to keep what a pretrained language model has learned.

The settings are those of ``benchmarks/language.py``, which cannot be imported without transformers; a test compares
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from forgetless.repair.recollection import NEWEST, TOP
from forgetless.repair.settings import LANGUAGE_BATCH
from pages.rows import benchmark_record
from pages.template import markdown_table

DOMAINS, UNTOUCHED = ("speeches", "German", "Python", "French"), "reference"
OLDER, LATEST, MEAN = DOMAINS[:-1], DOMAINS[-1], "mean"
STEPS, BATCH, LENGTH, CAPACITY = 240, 16, 256, 200
RANK, SCHEDULE = 16, {"every": 60, "steps": 5, "batch": 8}  # of LoRA and k-FPF
NAMES = {
    "plain": "plain training",
    "replay 1 %": "replay of 1 %",
    "replay 5 %": "replay of 5 %",
    "replay 12.5 %": "replay of 12.5 %",
    "LoRA": "LoRA",
    "upper half": "upper half of the layers",
    "attention": "attention only",
    "k-FPF": "k-FPF",
    "interpolation": "interpolation",
    "FPF": "**`FPF`**",
    "FPF all": "`FPF`, all groups",
    "FPF norms": "`FPF`, norms only",
    "forgetless repair": "`forgetless repair`",
}
OURS = ("FPF", "FPF all", "FPF norms", "forgetless repair", "k-FPF")
COMMAND = 'python benchmarks/language.py --domains domains.npz --device cuda --work FOLDER --rows "{}"'
Run = Mapping[str, Any]


def values() -> dict[str, Any]:
    """Return the values of the template."""
    record = benchmark_record("language.json")
    runs = {name: [run for run in record["runs"] if run["row"] == name] for name in NAMES}
    plain = {run["seed"]: run for run in runs["plain"]}
    rows = {name: summary(found, plain) for name, found in runs.items()}
    losses = mean_losses(runs)
    searches = {name: record["searches"][name] for name in rows if name in record["searches"]}
    return {
        "record": record,
        "rows": rows,
        "table": main_table(rows),
        "others": sorted(set(rows) - {"plain", *OURS}, key=lambda name: -rows[name]["recovered"]),
        "names": NAMES,
        "domains": DOMAINS,
        "losses": losses,
        "worse": [name for name in rows if all(losses[name][on] > losses["plain"][on] for on in DOMAINS)],
        "at_the_edge": [NAMES[name] for name, searched in searches.items() if best_rate(searched) == [*searched][-1]],
        "best_mean": min(losses, key=lambda name: losses[name][MEAN]),
        "loss_table": loss_table(runs),
        "rate_table": rate_table(searches),
        "weights": sorted({str(run["rate"]) for run in runs["interpolation"]}),
        "repair_command": runs["forgetless repair"][0]["command"],
        "commands": [COMMAND.format(name) for name in NAMES],
        "seeds": len(plain),
        "tokens": runs["plain"][0]["tokens"],
        "settings": {"steps": STEPS, "batch": BATCH, "length": LENGTH, "capacity": CAPACITY},
        "tokens_in_full": mean(tokens_in_full(run, plain[run["seed"]]) for run in runs["FPF"]),
        "rank": RANK,
        "schedule": SCHEDULE,
        "constants": {"newest": NEWEST, "top": TOP},
    }


def summary(runs: Sequence[Run], plain: Mapping[int, Run]) -> dict[str, float]:
    """Return what a row recovers and costs, compared with plain training of the same seed.

    All but the seconds are in percent. ``error`` is the standard error of ``recovered``.
    """
    recovered = [recovery(run, plain[run["seed"]]) for run in runs]

    def change(domain: str) -> float:
        return 100 * float(mean(run["losses"][domain] / plain[run["seed"]]["losses"][domain] - 1 for run in runs))

    return {
        "recovered": mean(recovered),
        "error": stdev(recovered) / len(recovered) ** 0.5,
        "newest": change(LATEST),
        "untouched": change(UNTOUCHED),
        "tokens": 100 * mean(run["tokens"] / plain[run["seed"]]["tokens"] - 1 for run in runs),
        "seconds": mean(run["seconds"] for run in runs),
        "share": 100 * mean(run["share"] for run in runs),
    }


def recovery(run: Run, plain: Run) -> float:
    """Return how much of what plain training loses on the older domains a run does not lose, in percent.

    It is the mean over these domains. What a domain loses is its rise in loss since it had just been learned.
    """
    shares = []
    for domain in OLDER:
        lost = plain["losses"][domain] - plain["learned"][domain]
        shares.append((plain["losses"][domain] - run["losses"][domain]) / lost)
    return 100 * float(mean(shares))


def tokens_in_full(run: Run, plain: Run) -> float:
    """Return by how many percent a repair adds to the tokens if those that are only predicted count in full."""
    held_out, steps = (int(re.findall(pattern, run["report"])[0]) for pattern in (r"\((\d+) of", r"kept of (\d+)"))
    trained = (steps * LANGUAGE_BATCH + held_out) * LENGTH  # the scores of the groups need gradients too
    predicted = 3 * (run["tokens"] - plain["tokens"] - trained)
    return 100 * float((trained + predicted) / plain["tokens"])


def main_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return the main table, the row that recovers most first."""
    header = ["", "recovered", "newest", "untouched", "more tokens", "seconds", "parameters changed"]
    lines = []
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["recovered"]):
        changes = [
            f"{row['recovered']:.0f} ± {row['error']:.1f} %",
            *(f"{row[column]:+.1f} %" for column in ("newest", "untouched", "tokens")),
        ]
        share = f"{row['share']:.0f} %" if row["share"] >= 1 else f"{row['share']:.2g} %"
        lines.append([NAMES[name], *(["–"] * 4 if name == "plain" else changes), f"{row['seconds']:.0f}", share])
    return markdown_table(header, lines)


def mean_losses(runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, float]]:
    """Return the test loss of each row on each domain, and the mean over the domains of the training."""
    losses = {}
    for name, found in runs.items():
        by_domain = {domain: mean(run["losses"][domain] for run in found) for domain in (*DOMAINS, UNTOUCHED)}
        losses[name] = by_domain | {MEAN: mean(by_domain[domain] for domain in DOMAINS)}
    return losses


def loss_table(runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the test losses as a table, which begins with those on each domain when it had just been learned."""
    learned = [mean(run["learned"][domain] for run in runs["plain"]) for domain in DOMAINS]
    lines = [["just learned", *(f"{value:.3f}" for value in learned), "–", f"{mean(learned):.3f}"]]
    lines += [
        [NAMES[name], *(f"{value:.3f}" for value in by_domain.values())]
        for name, by_domain in mean_losses(runs).items()
    ]
    return markdown_table(["", *DOMAINS, UNTOUCHED, "mean of the four"], lines)


def best_rate(searched: Mapping[str, float]) -> str:
    """Return the learning rate with the lowest validation loss."""
    return min(searched, key=lambda rate: searched[rate])


def rate_table(searches: Mapping[str, Mapping[str, float]]) -> str:
    """Return the mean validation loss at each learning rate that was searched; the lowest is bold."""
    lines = []
    for name, searched in searches.items():
        cells = {f"{float(rate):g}: {loss:.3f}": rate == best_rate(searched) for rate, loss in searched.items()}
        lines.append([NAMES[name], *(f"**{cell}**" if is_best else cell for cell, is_best in cells.items())])
    return markdown_table(["", "lowest rate", "middle rate", "highest rate"], lines)
