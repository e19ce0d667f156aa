"""The tables and figures of the paper, each as an item of ``reproduce``. Imports no torch.

Full items are the paper's set-up. With ``quick`` they are small: the digits (or the stream that is asked for), two
seeds, fewer points; the output says so, and is compared with what the paper says rather than with its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgetless.paper import choices, movement, tables
from forgetless.paper.reproduce import Item, Line, Options
from forgetless.repair.settings import Finetune

ITEMS: Mapping[str, Item] = {
    **tables.ITEMS,
    **movement.ITEMS,
    **choices.ITEMS,
    "flops-accuracy": Item(
        "figure of FLOPs and accuracy", "accuracy and cost of all methods", tables.flops_accuracy,
        tables.fpf_improves, tables.draw_flops,
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
    repairs = [(one.stream, one.finetune) for one in settings if one.finetune is not None]
    choosing = [repair.threshold for _, repair in repairs if repair.every and repair.groups == "auto"]
    lower = sorted({threshold for threshold in choosing if threshold != Finetune.k_fpf().threshold})
    if lower:
        said.append(f"k-FPF chooses groups above {', '.join(map(str, lower))}, found on validation; the paper says 0.3")
    if not any(line.target for line in lines):
        said.append("the paper gives no numbers for this: what it says is checked instead")
    if any("kd" in line.name for line in lines):
        weights = ", ".join(dict.fromkeys(f"{stream} {repair.distill}" for stream, repair in repairs if repair.distill))
        said.append(f"λ of KD: {weights} (searched for, or the middle of the paper's grid)")
    return said
