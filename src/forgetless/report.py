"""Records → a table, and one self-contained HTML page with pictures. Imports no torch."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, stdev
from typing import Any

from forgetless.record import Record

COLOURS = ("#3b82f6", "#ea580c", "#16a34a", "#8b5cf6", "#e11d48", "#0891b2", "#ca8a04", "#65a30d", "#c026d3", "#64748b")


@dataclass(frozen=True)
class Row:
    """The records of one way of training, over their seeds."""

    label: str
    records: tuple[Record, ...]

    @property
    def accuracy(self) -> float:
        return mean(record.accuracy for record in self.records)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; 0 for one."""
        values = [record.accuracy for record in self.records]
        return stdev(values) if len(values) > 1 else 0.0

    @property
    def forgetting(self) -> float | None:
        values = [record.forgetting for record in self.records if record.forgetting is not None]
        return mean(values) if values else None

    @property
    def tflops(self) -> float:
        return mean(sum(record.flops.values()) for record in self.records) / 1e12

    @property
    def seconds(self) -> float:
        return mean(record.seconds["total"] for record in self.records)

    @property
    def share(self) -> float:
        return mean(record.share for record in self.records)

    @property
    def anytime(self) -> list[float]:
        return [mean(values) for values in zip(*(record.anytime for record in self.records), strict=True)]

    @property
    def sensitivity(self) -> dict[str, float]:
        first = self.records[0].sensitivity
        found = {}
        for group in first:
            values = [score for record in self.records if (score := record.sensitivity[group]) is not None]
            if values:
                found[group] = mean(values)
        return found


def rows(records: Sequence[Record]) -> list[Row]:
    """One row for each way of training (all settings but the seed), in the order in which they first appear.

    Where several ways have one label, the settings in which they differ are named: er, buffer 200.
    """
    ways: dict[str, list[Record]] = {}
    for record in records:
        ways.setdefault(json.dumps(_without_seed(record), sort_keys=True), []).append(record)
    found = []
    for members in ways.values():
        label = members[0].label
        namesakes = [_without_seed(others[0]) for others in ways.values() if others[0].label == label]
        own = _without_seed(members[0])
        differing = [n for n in own if any(other.get(n) != own[n] for other in namesakes)]
        found.append(Row(", ".join([label, *(f"{name} {own[name]}" for name in differing)]), tuple(members)))
    return found


def _without_seed(record: Record) -> dict[str, Any]:
    """All settings but the seed, a method's own among them."""
    own: dict[str, Any] = {name: value for name, value in record.settings.items() if name not in ("seed", "options")}
    return {**own, **record.settings["options"]}


def table(records: Sequence[Record]) -> str:
    """The rows as CSV, numbers unrounded, with the ids of their records."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["stream", "method", "accuracy", "std", "seeds", "forgetting", "flops", "seconds", "share", "records"]
    )
    for row in rows(records):
        forgot = "" if row.forgetting is None else row.forgetting
        ids = " ".join(record.id for record in row.records)
        writer.writerow([
            row.records[0].settings["stream"], row.label, row.accuracy, row.spread, len(row.records), forgot,
            round(row.tflops * 1e12), row.seconds, row.share, ids,
        ])  # fmt: skip
    return text.getvalue()


def cells(row: Row) -> list[str]:
    """What the table says of a row: label, accuracy, forgetting, FLOPs, seconds, share finetuned."""
    forgot = "–" if row.forgetting is None else f"{row.forgetting:.1f}"
    spread = f" ± {row.spread:.1f}" if len(row.records) > 1 else ""
    share = f"{row.share:.2%}" if row.share else "–"
    return [row.label, f"{row.accuracy:.1f}{spread}", forgot, si(row.tflops * 1e12), f"{row.seconds:.1f}", share]


HEADINGS = ("method", "accuracy %", "forgetting", "FLOPs", "seconds", "finetuned")


def si(value: float) -> str:
    """A number with a unit prefix: 1.3 G."""
    if not value:
        return "0"
    power = min(int(math.log10(value)) // 3, 5)
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}".strip()


def page(records: Sequence[Record], title: str) -> str:
    """The whole page: table, accuracy after each task, accuracy and cost, forgetting profile, settings."""
    found = rows(records)
    colours = {row.label: COLOURS[i % len(COLOURS)] for i, row in enumerate(found)}
    best = max(row.accuracy for row in found)
    first = records[0]
    seeds = sorted({record.settings["seed"] for record in records})
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(first.settings['stream'])}, network {escape(first.settings['network'])}, buffer "
        f"{first.settings['buffer']}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}. Accuracy: mean over all tasks "
        "after the last one, with all classes competing. Forgetting: how far tasks fall below their best.</p>",
        _table(found, best, colours),
        "<h2>Accuracy after each task</h2><p>Mean over the tasks seen so far, in percent.</p>",
        _lines({row.label: row.anytime for row in found if len(row.anytime) > 1}, colours),
        "<h2>Accuracy and cost</h2><p>FLOPs of the whole run on a logarithmic axis; up and to the left is better.</p>",
        _scatter(found, colours),
    ]
    profiled = next((row for row in found if row.label == "sgd" and row.sensitivity), None)
    profiled = profiled or next((row for row in found if row.sensitivity), None)
    if profiled:
        body += [
            f"<h2>Forgetting profile</h2><p>Sensitivity S_g of each group of parameters when the task changes, "
            f"{escape(profiled.label)}; the mean over trainable groups is 1. FPF finetunes the groups above 1, k-FPF "
            "those above 0.3.</p>",
            _bars(profiled.sensitivity),
        ]
    body.append(_settings(found))
    made = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    body.append(f"<footer>{escape(made)}; {escape(first.device)}</footer>")
    return _PAGE.replace("{title}", escape(title)).replace("{body}", "\n".join(body))


def _table(found: Sequence[Row], best: float, colours: Mapping[str, str]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    lines = []
    for row in found:
        values = [escape(value) for value in cells(row)]
        values[0] = f'<i style="background:{colours[row.label]}"></i>{values[0]}'
        if row.accuracy == best:
            values[1] = f"<b>{values[1]}</b>"
        lines.append("<tr>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 44, 120, 12, 36


def _frame(marks: Sequence[tuple[float, str]], below: Sequence[tuple[float, str]], inside: str, name: str) -> str:
    """An SVG picture with a grid of percent on the left (0 to 100), ticks below, and what goes inside."""
    lines = []
    for y, text in marks:
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for x, text in below:
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{text}</text>')
    return _picture(HEIGHT, name, "".join(lines) + inside)


def _picture(height: float, name: str, inside: str) -> str:
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}">{inside}</svg>'
    return f'<div class="wide">{svg}</div>'


def _y(percent: float) -> float:
    return TOP + (100 - percent) / 100 * (HEIGHT - TOP - BOTTOM)


_PERCENTS = tuple((_y(percent), str(percent)) for percent in (0, 25, 50, 75, 100))


def _spread(wanted: Sequence[tuple[float, float]], width: float = 90, height: float = 13) -> list[float]:
    """A height for the label of each (x, y), at y or as little below it as keeps labels from covering each other."""
    placed: dict[int, tuple[float, float]] = {}
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i][1]):
        x, y = wanted[i]
        while any(abs(x - other) < width and abs(y - place) < height for other, place in placed.values()):
            y += 1
        placed[i] = (x, y)
    return [placed[i][1] for i in range(len(wanted))]


def _lines(series: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> str:
    if not series:
        return ""
    tasks = max(len(values) for values in series.values())

    def x(task: int) -> float:
        return LEFT + 10 + task / max(1, tasks - 1) * (WIDTH - LEFT - RIGHT - 20)

    drawn = []
    ends = _spread([(0.0, _y(values[-1])) for values in series.values()])
    for (label, values), place in zip(series.items(), ends, strict=True):
        points = " ".join(f"{x(t):.1f},{_y(value):.1f}" for t, value in enumerate(values))
        colour = colours[label]
        dots = "".join(
            f'<circle cx="{x(t):.1f}" cy="{_y(value):.1f}" r="3" fill="{colour}"><title>{escape(label)}, after task '
            f"{t + 1}: {value:.1f} %</title></circle>"
            for t, value in enumerate(values)
        )
        drawn.append(f'<polyline points="{points}" stroke="{colour}"/>{dots}')
        drawn.append(f'<text x="{WIDTH - RIGHT + 6}" y="{place + 4:.1f}" style="fill:{colour}">{escape(label)}</text>')
    ticks = [(x(task), f"{'task ' if task == 0 else ''}{task + 1}") for task in range(tasks)]
    return _frame(_PERCENTS, ticks, "".join(drawn), "accuracy after each task")


def _scatter(found: Sequence[Row], colours: Mapping[str, str]) -> str:
    costs = [math.log10(max(row.tflops * 1e12, 1)) for row in found]
    low, high = min(costs) - 0.1, max(costs) + 0.1

    def x(cost: float) -> float:
        return LEFT + (cost - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    drawn = []
    places = _spread([(x(cost), _y(row.accuracy)) for row, cost in zip(found, costs, strict=True)])
    for row, cost, place in zip(found, costs, places, strict=True):
        colour, at, y = colours[row.label], x(cost), _y(row.accuracy)
        drawn.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_y(min(100, row.accuracy + row.spread)):.1f}" '
            f'y2="{_y(max(0, row.accuracy - row.spread)):.1f}" stroke="{colour}"/>'
            f'<circle cx="{at:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{escape(row.label)}: '
            f"{row.accuracy:.1f} %, {si(row.tflops * 1e12)}FLOPs</title></circle>"
            f'<text x="{at + 9:.1f}" y="{place + 4:.1f}" style="fill:{colour}">{escape(row.label)}</text>'
        )
    ticks = []
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5):
            cost = power + math.log10(step)
            if low <= cost <= high:
                ticks.append((x(cost), f"{si(10**power * step)}FLOPs"))
    return _frame(_PERCENTS, ticks, "".join(drawn), "accuracy and FLOPs")


def _bars(scores: Mapping[str, float]) -> str:
    """Horizontal bars; the longest fills the width."""
    longest = max(scores.values())
    height = 26 * len(scores) + 10
    lines = []
    for i, (group, score) in enumerate(scores.items()):
        y = 8 + 26 * i
        length = max(1.0, score / longest * (WIDTH - 190))
        shade = "#c2410c" if score > 1 else "#fb923c" if score > 0.3 else "#a8a29e"
        lines.append(f'<text x="88" y="{y + 13}" text-anchor="end">{escape(group)}</text>')
        lines.append(f'<rect x="96" y="{y}" width="{length:.1f}" height="18" rx="3" fill="{shade}"/>')
        lines.append(f'<text x="{102 + length:.1f}" y="{y + 13}">{score:.2f}</text>')
    return _picture(height, "forgetting profile", "".join(lines))


def _settings(found: Sequence[Row]) -> str:
    """The settings of each row, folded away."""
    parts = []
    for row in found:
        record = row.records[0]
        own = {k: v for k, v in record.settings.items() if k != "options" and v not in (None, [], {}, "none")}
        text = ", ".join(f"{name} {value}" for name, value in {**own, **record.settings["options"]}.items())
        ids = " ".join(other.id for other in row.records)
        parts.append(f"<dt>{escape(row.label)}</dt><dd>{escape(text)}<br>records {escape(ids)}</dd>")
    return f"<details><summary>Settings and records</summary><dl>{''.join(parts)}</dl></details>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root { color-scheme: light dark; --ink: #1c1917; --soft: #78716c; --line: #e7e5e4; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #f5f5f4; --soft: #a8a29e; --line: #44403c; --paper: #1c1917; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 46rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2rem 0 0; } p { margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
td i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .5rem; }
svg { width: 100%; min-width: 34rem; height: auto; font-size: 12px; } svg text { fill: var(--ink); }
svg .grid { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; }
details { margin: 2rem 0 1rem; } dt { font-weight: 600; } dd { margin: 0 0 .6rem; color: var(--soft); font-size: .9rem;
  overflow-wrap: anywhere; } footer { color: var(--soft); font-size: .85rem; }
</style></head><body>
{body}
</body></html>
"""
