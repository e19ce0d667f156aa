"""Records → one self-contained HTML page: tables that sort, pictures, settings, a link to every record. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import mean

from forgetless.experiments.record import Record
from forgetless.reports.rows import HEADINGS, Row, best, by_stream, cells, front, profiled, rows, si

COLOURS = ("#3b82f6", "#ea580c", "#16a34a", "#8b5cf6", "#e11d48", "#0891b2", "#ca8a04", "#65a30d", "#c026d3", "#64748b")
GREY = "#a8a29e"
MATRICES = 24  # of the best rows, so that a page of a large sweep stays readable
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 44, 180, 12, 36


def html(records: Sequence[Record], title: str, links: Mapping[str, str] | None = None) -> str:
    """The whole page. ``links`` are addresses of records, by id; those without one are named only."""
    streams = by_stream(records)
    body = [f"<h1>{escape(title)}</h1>"]
    for number, (stream, members) in enumerate(streams.items()):
        if len(streams) > 1:
            body.append(f"<h1>{escape(stream)}</h1>")
        body += _section(stream, members, links or {}, f"s{number}")
    made = dict.fromkeys(
        f"{', '.join(f'{name} {version}' for name, version in record.versions.items())}; {record.device}"
        for record in records
    )
    body.append(f"<footer>{'<br>'.join(escape(one) for one in made)}</footer>")
    return _PAGE.replace("{title}", escape(title)).replace("{body}", "\n".join(body))


def _section(stream: str, records: Sequence[Record], links: Mapping[str, str], anchor: str) -> list[str]:
    """What there is to say of one stream."""
    found = rows(records)
    ranked = sorted(found, key=lambda row: -row.accuracy)
    shown = [row for row in found if row in ranked[: len(COLOURS)]]
    colours = {row.label: COLOURS[i] for i, row in enumerate(shown)}
    only = "" if len(shown) == len(found) else f" The {len(shown)} best of {len(found)} have colours."
    networks = ", ".join(dict.fromkeys(record.settings["network"] for record in records))
    buffers = ", ".join(dict.fromkeys(str(record.settings["buffer"]) for record in records))
    counts = sorted({len(row.records) for row in found})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    validated = any(record.settings.get("validation") for record in records)
    held_out = " Rows on validation were tested on held-out training images." if validated else ""
    partly = any(made.settings["repair"] != "none" and not made.settings.get("anytime") for made in records)
    last = (
        " Rows of FPF without --anytime were finetuned after the last task alone, k-FPF also on its way."
        if partly
        else ""
    )
    said = f"{stream}, network {networks}, buffer {buffers}, {seeds} seed{'s' if counts[-1] > 1 else ''} a row"
    parts = [
        f"<p>{escape(said)}. "
        "Accuracy: mean over all tasks after the last one, with all classes competing. Forgetting: how far tasks fall "
        f"below their best. A heading sorts; a number leads to its records.{held_out}</p>",
        _table(found, best(found), colours, anchor),
        f"<h2>Accuracy after each task</h2><p>Mean over the tasks seen so far, in percent.{last}{only}</p>",
        _lines({row.label: row.anytime for row in found if len(row.anytime) > 1}, colours),
        "<h2>Accuracy and cost</h2><p>FLOPs of the whole run on a logarithmic axis; up and to the left is better. The "
        "line joins those that no other beats in both; joint, which sees all tasks at once, is not among them.</p>",
        _scatter(found, colours),
    ]
    if (told := profiled(found)) is not None:
        mixed = " What its finetunings moved is part of it." if told.moved_by_finetuning else ""
        parts += [
            f"<h2>Forgetting profile</h2><p>Sensitivity S_g of each group of parameters when the task changes, "
            f"{escape(told.label)}; the mean over trainable groups is 1.{mixed}{_thresholds(records)}</p>",
            _bars(told.sensitivity),
        ]
        over_time = _profile(told.records[0])
        if over_time:
            parts += [
                f"<p>Mean absolute change of each group over every epoch, {escape(told.label)}, seed "
                f"{escape(str(told.records[0].settings['seed']))}. Dotted lines: a task begins; triangles: where "
                "the changes alone tell it.</p>",
                over_time,
            ]
    matrices = "".join(
        f"<figure><figcaption>{escape(row.label)}</figcaption>{_matrix(row.matrix)}</figure>"
        for row in ranked[:MATRICES]
        if len(row.matrix) > 1
    )
    if matrices:
        few = f" Of the {MATRICES} best rows." if len(ranked) > MATRICES else ""
        parts.append(
            "<h2>Accuracy matrices</h2><p>Accuracy on each task (columns) after each task (lines), mean over seeds."
            f'{few}</p><div class="matrices">{matrices}</div>'
        )
    parts.append(_settings(found, links, anchor))
    return parts


def _thresholds(records: Sequence[Record]) -> str:
    """Above which S_g the runs with FPF and k-FPF finetuned."""
    said = []
    for repair, name in (("fpf", "FPF"), ("k-fpf", "k-FPF")):
        own = [r.settings for r in records if r.settings["repair"] == repair and r.settings["groups"] == "auto"]
        if values := sorted({settings["threshold"] for settings in own}):
            said.append(f"{name} those above {', '.join(f'{value:g}' for value in values)}")
    return f" Finetuned: {'; '.join(said)}." if said else ""


def _table(found: Sequence[Row], top: Sequence[Row], colours: Mapping[str, str], anchor: str) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    lines = []
    for number, row in enumerate(found):
        values = [escape(value) for value in cells(row)]
        values[1] = f"<b>{values[1]}</b>" if row in top else values[1]
        values = [f'<a href="#{anchor}-{number}">{value}</a>' for value in values]
        values[0] = f'<i style="background:{colours.get(row.label, GREY)}"></i>{values[0]}'
        keys = (row.label, row.accuracy, row.forgetting, row.tflops, row.seconds, row.share)
        data = "".join(
            f'<td data-v="{"" if key is None else escape(str(key))}">{value}</td>'
            for key, value in zip(keys, values, strict=True)
        )
        lines.append(f"<tr>{data}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _frame(marks: Iterable[tuple[float, str]], below: Iterable[tuple[float, str]], inside: str, name: str) -> str:
    """An SVG picture with a grid on the left, ticks below, and what goes inside."""
    lines = []
    for y, text in marks:
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for x, text in below:
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{escape(text)}</text>')
    return _picture(HEIGHT, name, "".join(lines) + inside)


def _picture(height: float, name: str, inside: str) -> str:
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}">{inside}</svg>'
    return f'<div class="wide">{svg}</div>'


def _y(percent: float) -> float:
    return TOP + (100 - percent) / 100 * (HEIGHT - TOP - BOTTOM)


_PERCENTS = tuple((_y(percent), str(percent)) for percent in (0, 25, 50, 75, 100))


def spread(wanted: Sequence[tuple[float, float]], width: float = 150, height: float = 13) -> list[float]:
    """A height for the label of each (x, y), at y or as little below it as keeps labels from covering each other."""
    placed: dict[int, tuple[float, float]] = {}
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i][1]):
        x, y = wanted[i]
        while any(abs(x - other) < width and abs(y - place) < height for other, place in placed.values()):
            y += 1
        placed[i] = (x, y)
    return [placed[i][1] for i in range(len(wanted))]


def _short(label: str) -> str:
    """As much of a label as there is room for beside a picture; the whole of it is its title."""
    text = escape(label if len(label) <= 28 else f"{label[:27]}…")
    return f"{text}<title>{escape(label)}</title>"


def _curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" stroke="{colour}"/>'


def _lines(series: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> str:
    if not series:
        return ""
    tasks = max(len(values) for values in series.values())

    def x(task: int) -> float:
        return LEFT + 10 + task / max(1, tasks - 1) * (WIDTH - LEFT - RIGHT - 20)

    drawn = [
        _curve([(x(t), _y(value)) for t, value in enumerate(values)], GREY)
        for label, values in series.items()
        if label not in colours
    ]
    named = {label: values for label, values in series.items() if label in colours}
    ends = spread([(0.0, _y(values[-1])) for values in named.values()])
    for (label, values), place in zip(named.items(), ends, strict=True):
        colour = colours[label]
        drawn.append(_curve([(x(t), _y(value)) for t, value in enumerate(values)], colour))
        drawn += [
            f'<circle cx="{x(t):.1f}" cy="{_y(value):.1f}" r="3" fill="{colour}"><title>{escape(label)}, after task '
            f"{t + 1}: {value:.1f} %</title></circle>"
            for t, value in enumerate(values)
        ]
        text = f'<text x="{WIDTH - RIGHT + 6}" y="{place + 4:.1f}" style="fill:{colour}">{_short(label)}</text>'
        drawn.append(text)
    every = math.ceil(tasks / 20)
    ticks = [(x(task), f"{'task ' if task == 0 else ''}{task + 1}") for task in range(0, tasks, every)]
    return _frame(_PERCENTS, ticks, "".join(drawn), "accuracy after each task")


def _scatter(found: Sequence[Row], colours: Mapping[str, str]) -> str:
    costs = {row.label: math.log10(max(row.tflops * 1e12, 1)) for row in found}
    low, high = min(costs.values()) - 0.1, max(costs.values()) + 0.1

    def x(row: Row) -> float:
        return LEFT + (costs[row.label] - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    joined = [(x(row), _y(row.accuracy)) for row in front(found)]
    drawn = [f'<g class="front">{_curve(joined, GREY)}</g>']
    named = [row for row in found if row.label in colours]
    places = dict(zip((row.label for row in named), spread([(x(row), _y(row.accuracy)) for row in named]), strict=True))
    for row in found:
        colour, at = colours.get(row.label, GREY), x(row)
        drawn.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_y(min(100, row.accuracy + row.spread)):.1f}" '
            f'y2="{_y(max(0, row.accuracy - row.spread)):.1f}" stroke="{colour}"/>'
            f'<circle cx="{at:.1f}" cy="{_y(row.accuracy):.1f}" r="5" fill="{colour}"><title>{escape(row.label)}: '
            f"{row.accuracy:.1f} %, {si(row.tflops * 1e12)}FLOPs</title></circle>"
        )
        if row.label in places:
            y = places[row.label] + 4
            drawn.append(f'<text x="{at + 9:.1f}" y="{y:.1f}" style="fill:{colour}">{_short(row.label)}</text>')
    ticks = []
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5) if high - low < 3 else (1,):
            cost = power + math.log10(step)
            if low <= cost <= high:
                at = LEFT + (cost - low) / (high - low) * (WIDTH - LEFT - RIGHT)
                ticks.append((at, f"{si(10**power * step)}FLOPs"))
    return _frame(_PERCENTS, ticks, "".join(drawn), "accuracy and FLOPs")


def _bars(scores: Mapping[str, float]) -> str:
    """Horizontal bars; the longest fills the width."""
    longest = max(scores.values()) or 1.0
    height = 26 * len(scores) + 10
    lines = []
    for i, (group, score) in enumerate(scores.items()):
        y = 8 + 26 * i
        length = max(1.0, score / longest * (WIDTH - 190))
        shade = "#c2410c" if score > 1 else "#fb923c" if score > 0.3 else GREY
        lines.append(f'<text x="88" y="{y + 13}" text-anchor="end">{escape(group)}</text>')
        lines.append(f'<rect x="96" y="{y}" width="{length:.1f}" height="18" rx="3" fill="{shade}"/>')
        lines.append(f'<text x="{102 + length:.1f}" y="{y + 13}">{score:.2f}</text>')
    return _picture(height, "forgetting profile", "".join(lines))


def _profile(record: Record) -> str:
    """The change of each group over every epoch on a logarithmic axis, with the begins of tasks."""
    marks = [(task, epoch) for task, epoch, _ in record.epoch_changes]
    groups = list(record.epoch_changes[0][2]) if record.epoch_changes else []
    values = {group: [changes[group] for _, _, changes in record.epoch_changes] for group in groups}
    positive = [value for series in values.values() for value in series if value > 0]
    if len(marks) < 3 or not positive:
        return ""
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)

    def x(index: float) -> float:
        return LEFT + 10 + index / (len(marks) - 1) * (WIDTH - LEFT - RIGHT - 20)

    def y(value: float) -> float:
        return TOP + (high - math.log10(max(value, 10.0**low))) / (high - low) * (HEIGHT - TOP - BOTTOM)

    drawn = []
    for index, (task, _) in enumerate(marks):
        if index and task != marks[index - 1][0]:
            drawn.append(
                f'<line class="task" x1="{x(index):.1f}" x2="{x(index):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            )
    for index in record.boundaries:
        at = x(index)
        drawn.append(f'<path d="M{at:.1f},{TOP + 8} l-5,-8 h10 z" fill="{COLOURS[4]}"><title>detected</title></path>')
    ends = spread([(0.0, y(series[-1])) for series in values.values()])
    for i, ((group, series), place) in enumerate(zip(values.items(), ends, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        drawn.append(_curve([(x(index), y(value)) for index, value in enumerate(series)], colour))
        text = f'<text x="{WIDTH - RIGHT + 6}" y="{place + 4:.1f}" style="fill:{colour}">{_short(group)}</text>'
        drawn.append(text)
    powers = [(y(10.0**power), f"1e{power}") for power in range(low, high + 1)]
    firsts = [(index, task) for index, (task, epoch) in enumerate(marks) if epoch == 1]
    every = math.ceil(len(firsts) / 20)
    ticks = [(x(index), f"{'task ' if task == 1 else ''}{task}") for index, task in firsts[::every]]
    return _frame(powers, ticks, "".join(drawn), "change of each group over time")


def _matrix(matrix: Sequence[Sequence[float]]) -> str:
    """Accuracies as a picture: the darker the higher."""
    size = max(len(matrix[0]), len(matrix))
    cell = 200 / size
    drawn = []
    for i, line in enumerate(matrix):
        for j, value in enumerate(line):
            at = f'x="{j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            said = f"<title>after task {i + 1}, on task {j + 1}: {value:.1f} %</title>"
            drawn.append(f'<rect {at} fill="{COLOURS[0]}" fill-opacity="{value / 100:.2f}">{said}</rect>')
            if size <= 6:
                middle = f'x="{(j + 0.5) * cell:.1f}" y="{(i + 0.5) * cell + 4:.1f}"'
                drawn.append(f'<text {middle} text-anchor="middle">{value:.0f}</text>')
    height = cell * len(matrix)
    return f'<svg viewBox="0 0 200 {height:.0f}" role="img" aria-label="accuracy matrix">{"".join(drawn)}</svg>'


def _settings(found: Sequence[Row], links: Mapping[str, str], anchor: str) -> str:
    """The settings of each row and its records, each with its number and a link."""
    parts = []
    for number, row in enumerate(found):
        record = row.records[0]
        own = {
            k: v for k, v in record.settings.items() if k not in ("options", "seed") and v not in (None, [], {}, "none")
        }
        text = ", ".join(f"{name} {value}" for name, value in {**own, **record.settings["options"]}.items())
        each = ", ".join(
            f"seed {escape(str(one.settings['seed']))}: "
            + (
                f'<a href="{escape(links[one.id])}">{one.accuracy:.2f} %</a>'
                if one.id in links
                else f"{one.accuracy:.2f} %"
            )
            + f" ({escape(one.id)}, {si(sum(one.flops.values()))}FLOPs, {one.seconds['total']:.1f} s)"
            for one in row.records
        )
        average = mean(one.task_il_accuracy for one in row.records)
        parts.append(
            f'<dt id="{anchor}-{number}">{escape(row.label)}</dt><dd>{escape(text)}<br>task-IL accuracy {average:.2f} %'
            f"<br>{each}</dd>"
        )
    return f"<details open><summary>Settings and records</summary><dl>{''.join(parts)}</dl></details>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root { color-scheme: light dark; --ink: #1c1917; --soft: #78716c; --line: #e7e5e4; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #f5f5f4; --soft: #a8a29e; --line: #44403c; --paper: #1c1917; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 52rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2rem 0 0; } p { margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; cursor: pointer; }
th[aria-sort=ascending]::after { content: " ↑"; } th[aria-sort=descending]::after { content: " ↓"; }
td a { color: inherit; text-decoration: none; } td a:hover { text-decoration: underline; }
td i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .5rem; }
svg { width: 100%; height: auto; font-size: 12px; } .wide svg { min-width: 34rem; } svg text { fill: var(--ink); }
svg .grid { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; }
svg .front polyline { stroke-dasharray: 4 4; stroke-width: 1.5; }
svg .task { stroke: var(--soft); stroke-dasharray: 1 4; }
.matrices { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .85rem; color: var(--soft); overflow-wrap: anywhere; }
details { margin: 2rem 0 1rem; } dt { font-weight: 600; } dd { margin: 0 0 .6rem; color: var(--soft); font-size: .9rem;
  overflow-wrap: anywhere; } dd a { color: inherit; } dt:target { background: var(--line); }
footer { color: var(--soft); font-size: .85rem; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; } .wide svg { min-width: 0; }
  svg, figure, tr { break-inside: avoid; } }
</style></head><body>
{body}
<script>
for (const head of document.querySelectorAll("th")) head.addEventListener("click", () => {
  const table = head.closest("table"), column = head.cellIndex, body = table.tBodies[0];
  const down = head.getAttribute("aria-sort") !== "descending" && column > 0
    || head.getAttribute("aria-sort") === "ascending";
  const key = row => row.cells[column].dataset.v;
  const compare = (a, b) => key(a) === "" ? 1 : key(b) === "" ? -1
    : column ? key(a) - key(b) : key(a).localeCompare(key(b));
  const sorted = [...body.rows].sort((a, b) => down && key(a) !== "" && key(b) !== "" ? compare(b, a) : compare(a, b));
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...sorted);
});
</script></body></html>
"""
