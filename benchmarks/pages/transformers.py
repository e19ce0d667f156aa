"""Compute the values of docs/transformers.md: pretrained transformers, trained in full and with adapters."""

from __future__ import annotations

from statistics import mean
from typing import Any

from pages.rows import benchmark_record
from pages.template import markdown_table

KINDS = ("full", "LoRA")


def values() -> dict[str, Any]:
    """Return the values of the template."""
    outcome = benchmark_record("transformers.json")
    examples = [
        {"name": name, "capacity": each["capacity"], "accuracies": accuracy_table(each), "profile": profile_table(each)}
        for name, each in outcome["examples"].items()
    ]
    return {"record": outcome, "examples": examples}


def accuracy_table(example: dict[str, Any]) -> str:
    """Return the accuracies before and after the last repair."""
    header = ["trained", "", "before the last repair", "after", "gain over plain", "repaired", "settings"]
    rows = []
    for kind in KINDS:
        plain = example[kind]["plain"]["after"]["values"]
        for repair, row in example[kind].items():
            before, gain, repaired = "–", "–", "–"
            settings = {"lr": example["rates"][kind]}
            if row["settings"] is not None:
                gains = [after - without for after, without in zip(row["after"]["values"], plain, strict=True)]
                before = f"{row['before']['mean']:.1f} ± {row['before']['std']:.1f}"
                gain = f"{mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
                repaired = f"{100 * row['repaired']:.2f} %"
                settings |= {("ft lr" if name == "lr" else name): value for name, value in row["settings"].items()}
            after = f"{row['after']['mean']:.1f} ± {row['after']['std']:.1f}"
            described = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            rows.append([f"{kind}, {100 * row['trained']:.0f} %", repair, before, after, gain, repaired, described])
    return markdown_table(header, rows)


def profile_table(example: dict[str, Any]) -> str:
    """Return S_g of every group and the number of seeds that chose the group."""
    header = ["group", "parameters", "S_g, full", "FPF, k-FPF", "adapter parameters", "S_g, LoRA", "FPF, k-FPF"]
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
