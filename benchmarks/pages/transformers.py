"""Compute the values of docs/transformers.md: pretrained transformers, trained in full and with adapters."""

from __future__ import annotations

from statistics import mean
from typing import Any

from pages.rows import benchmark_record
from pages.template import markdown_table

KINDS = ("full", "LoRA")
REPAIRS = ("FPF", "k-FPF")


def values() -> dict[str, Any]:
    """Return the values of the template."""
    outcome = benchmark_record("transformers.json")
    examples = [
        {"name": name, "capacity": each["capacity"], "accuracies": accuracy_table(each), "profile": profile_table(each)}
        for name, each in outcome["examples"].items()
    ]
    gains = {
        repair: [mean_gain(each[kind], repair) for each in outcome["examples"].values() for kind in KINDS]
        for repair in REPAIRS
    }
    return {
        "record": outcome,
        "examples": examples,
        "overview": overview_table(outcome["examples"]),
        "fpf_gains": gains["FPF"],
        "k_fpf_gains": gains["k-FPF"],
    }


def mean_gain(rows: dict[str, Any], repair: str) -> float:
    """Return what a repair gains over plain training, averaged over the seeds."""
    return float(mean(rows[repair]["after"]["values"]) - mean(rows["plain"]["after"]["values"]))


def overview_table(outcomes: dict[str, Any]) -> str:
    """Return the accuracy with plain training, FPF and k-FPF for every model."""
    rows = [
        [name.partition(",")[0], kind, *(accuracy_cell(each[kind][repair]["after"]) for repair in ("plain", *REPAIRS))]
        for name, each in outcomes.items()
        for kind in KINDS
    ]
    return markdown_table(["model", "trained", "plain", *REPAIRS], rows)


def accuracy_cell(accuracy: dict[str, float]) -> str:
    """Return mean ± standard deviation."""
    return f"{accuracy['mean']:.1f} ± {accuracy['std']:.1f}"


def accuracy_table(example: dict[str, Any]) -> str:
    """Return the accuracies before and after the last repair."""
    header = ["trained", "repair", "before", "after", "gain over plain", "repaired", "settings"]
    rows = []
    for kind in KINDS:
        plain = example[kind]["plain"]["after"]["values"]
        for repair, row in example[kind].items():
            before, gain, repaired = "–", "–", "–"
            settings = {"lr": example["rates"][kind]}
            if row["settings"] is not None:
                gains = [after - without for after, without in zip(row["after"]["values"], plain, strict=True)]
                before = accuracy_cell(row["before"])
                gain = f"{mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
                repaired = f"{100 * row['repaired']:.2f} %"
                settings |= {("ft lr" if name == "lr" else name): value for name, value in row["settings"].items()}
            described = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            trained = f"{kind}, {100 * row['trained']:.0f} %"
            rows.append([trained, repair, before, accuracy_cell(row["after"]), gain, repaired, described])
    return markdown_table(header, rows)


def profile_table(example: dict[str, Any]) -> str:
    """Return S_g of every group and the number of seeds that chose the group."""
    header = ["group", "parameters", "S_g, full", "chosen", "adapter parameters", "S_g, LoRA", "chosen"]
    rows = []
    for group, full in example["full"]["FPF"]["groups"].items():
        cells = [group, f"{full['parameters']:,}"]
        for kind in KINDS:
            once, often = (example[kind][repair]["groups"][group] for repair in ("FPF", "k-FPF"))
            known = [value for value in once["sensitivity"] if value is not None]
            if kind == "LoRA":
                cells.append(f"{once['parameters']:,}")
            cells.append(f"{mean(known):.2f}" if known else "–")
            cells.append(f"{once['chosen']}, {often['chosen']}" if known else "–")
        rows.append(cells)
    return markdown_table(header, rows)
