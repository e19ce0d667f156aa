"""The list of all tables and figures that ``forgetless reproduce`` knows. Imports no torch.

An item has the set-up of the paper. A quick one is small: the digits (or the stream of the options), two seeds, fewer
points. It tests the claims of the paper rather than its numbers.
"""

from collections.abc import Mapping, Sequence

from forgetless.paper import ablations, dynamics, tables
from forgetless.paper.reproduce import Item, Line, Options
from forgetless.repair.settings import THRESHOLDS

FIGURES = {**dynamics.ITEMS, **ablations.ITEMS, "flops-accuracy": tables.FLOPS_ACCURACY}
ITEMS: Mapping[str, Item] = {**tables.ITEMS, **FIGURES}


def notes(options: Options, lines: Sequence[Line]) -> list[str]:
    """Return how a reproduction differs from the paper's set-up."""
    remarks = []
    if options.quick:
        streams, seeds = ", ".join(dict.fromkeys(line.stream for line in lines)), len(lines[0].runs)
        plural = "s" if seeds > 1 else ""
        remarks.append(f"quick: {streams}, {seeds} seed{plural}, fewer points; the result is only an indication")
    settings = [run.settings for line in lines for run in line.runs]
    repairs = [(entry.stream, entry.finetune) for entry in settings if entry.finetune is not None]
    usual = THRESHOLDS["k-FPF"]
    thresholds = {repair.threshold or 0.0 for _, repair in repairs if repair.every and repair.groups == "auto"}
    if searched := ", ".join(map(str, sorted(thresholds - {usual}))):
        remarks.append(
            f"k-FPF chooses groups above {searched}, which was searched on validation; the paper uses {usual}"
        )
    if not any(line.target for line in lines):
        remarks.append("the paper has no numbers for this item, so its claims are checked instead")
    if weights := dict.fromkeys(f"{stream} {repair.distill}" for stream, repair in repairs if repair.distill):
        remarks.append(f"λ of KD: {', '.join(weights)} (searched, or the middle of the paper's grid)")
    return remarks
