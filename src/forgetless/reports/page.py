"""One self-contained HTML page of records: a verdict, sortable tables, charts, settings, a glossary. Imports no torch.

The HTML, CSS and script are in ``page.html``; ``section.html`` is the part of the page that each stream has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from statistics import mean
from string import Template

from forgetless.config.units import duration, quantity
from forgetless.experiments.record import Record
from forgetless.reports import svg
from forgetless.reports.glossary import glossary, meaning, with_links
from forgetless.reports.rows import (
    HEADINGS,
    Row,
    best_rows,
    by_stream,
    cells,
    family,
    profile_row,
    table_rows,
)
from forgetless.reports.verdict import cards, verdict

REPAIRED_LATER = " Without --anytime, FPF repairs only after the last task and k-FPF at its interval."
MATRICES = 24  # the page of a large sweep shows those of the best rows only


def html(records: Sequence[Record], title: str, links: Mapping[str, str] | None = None) -> str:
    """Return the page, with a section per stream; ``links`` has the addresses of records by id."""
    streams = by_stream(records)
    body = [f"<h1>{escape(title)}</h1>"]
    if len(streams) > 1:
        jumps = (f'<a href="#s{number}">{escape(stream)}</a>' for number, stream in enumerate(streams))
        body.append(f"<nav>{' · '.join(jumps)}</nav>")
    for number, (stream, members) in enumerate(streams.items()):
        if len(streams) > 1:
            body.append(f'<h1 id="s{number}">{escape(stream)}</h1>')
        body.append(_section(stream, members, links or {}, f"s{number}"))
    origins = dict.fromkeys(f"{', '.join(map(' '.join, r.versions.items()))}; {r.device}" for r in records)
    return _template("page.html").substitute(
        title=escape(title),
        body="\n".join(body),
        glossary=glossary("".join(body)),
        footer="<br>".join(map(escape, origins)),
    )


def _template(name: str) -> Template:
    return Template(files("forgetless.reports").joinpath(name).read_text(encoding="utf-8"))


def _section(stream: str, records: Sequence[Record], links: Mapping[str, str], anchor: str) -> str:
    """Return the part of the page about one stream."""
    rows = table_rows(records)
    looks = svg.row_styles(rows)
    unrepaired = any(r.settings["repair"] != "none" and not r.settings.get("anytime") for r in records)
    named = min(len(rows), svg.NAMED)
    below = [f"{label} {accuracy:.1f} %" for label, accuracy in svg.far_below(rows).items()]
    below[5:] = [f"and {len(below) - 5} more"] if len(below) > 5 else []
    return _template("section.html").substitute(
        verdict="".join(f"<p>{with_links(text)}</p>".replace(" %", "&nbsp;%") for text in verdict(rows)),
        cards="".join(
            f'<div class="card">{escape(title)}<b>{escape(value)}</b><span>{with_links(note)}</span></div>'
            for title, value, note in cards(rows)
        ),
        summary=escape(_summary(stream, rows)),
        headings="".join(
            f'<th scope="col"><button type="button" title="{escape(meaning(name.split()[0]))}">{name}</button></th>'
            for name in HEADINGS
        ),
        lines=_lines(rows, looks, anchor),
        unrepaired=REPAIRED_LATER if unrepaired else "",
        limited="" if named == len(rows) else f" {named} of {len(rows)} rows have labels.",
        below=f" Far below the others: {escape(', '.join(below))}." if below else "",
        anytime=svg.anytime(rows, looks),
        cost=svg.cost(rows, looks),
        profile=_profile(rows, records),
        matrices=_matrices(rows),
        settings="".join(_settings(row, links, f"{anchor}-{number}") for number, row in enumerate(rows)),
    )


def _summary(stream: str, rows: Sequence[Row]) -> str:
    """Return the stream, networks, buffers and seeds of a section in words."""
    settings = [record.settings for row in rows for record in row.records]
    networks = ", ".join(dict.fromkeys(values["network"] for values in settings))
    buffers = ", ".join(dict.fromkeys(str(values["buffer"]) for values in settings))
    counts = sorted({len(row.records) for row in rows})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{stream}, network {networks}, buffer {buffers}, {seeds} seed{'s' if counts[-1] > 1 else ''} per row"


def _lines(rows: Sequence[Row], looks: Mapping[str, svg.Style], anchor: str) -> str:
    """Return the lines of the table; each cell carries its unrounded value for sorting."""
    best, lines = best_rows(rows), []
    for number, row in enumerate(rows):
        texts = [escape(text) for text in cells(row)]
        name, comma, details = row.label.partition(",")
        mark = (
            f'<svg class="{looks[row.label].colour}" viewBox="-6 -6 12 12"><path d="{looks[row.label].marker}"/></svg>'
        )
        texts[0] = f"{mark}{with_links(name)}{comma}{escape(details)}"
        texts[1] = f'<a href="#{anchor}-{number}">{f"<b>{texts[1]}</b>" if row in best else texts[1]}</a>'
        values = (row.label, row.accuracy, row.forgetting, row.tflops, row.seconds, row.share)
        keys = ["" if value is None else escape(str(value)) for value in values]
        columns = (f'<td data-v="{key}">{text}</td>' for key, text in zip(keys, texts, strict=True))
        lines.append(f"<tr>{''.join(columns)}</tr>")
    return "".join(lines)


def _profile(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Return the forgetting profile of one row, and its changes over time, if a row has one."""
    row = profile_row(rows)
    if row is None:
        return ""
    mixed = " It includes what finetuning moved." if row.moved_by_finetuning else ""
    text = (
        f"<figure><h2>Forgetting profile</h2>{svg.profile(row.sensitivity)}<figcaption>Sensitivity S_g of each "
        f"parameter group when the task changes, {escape(row.label)}; the mean over trainable groups is 1.{mixed}"
        f"{_thresholds(records)}</figcaption></figure>"
    )
    if over_time := svg.dynamics(row.records[0]):
        text += (
            f"<figure><h2>Change of each group</h2>{over_time}<figcaption>Mean absolute change over every epoch, "
            f"{escape(row.label)}, seed {escape(str(row.settings['seed']))}. The colour is that of the repair which "
            "chooses the group by default. Dotted lines: a task begins. Triangles: a shift was detected from the "
            "changes alone.</figcaption></figure>"
        )
    return text


def _thresholds(records: Sequence[Record]) -> str:
    """Return a sentence about the thresholds of the runs that choose groups by S_g."""
    parts = []
    for repair, name in (("fpf", "FPF"), ("k-fpf", "k-FPF")):
        chosen = [r.settings for r in records if r.settings["repair"] == repair and r.settings["groups"] == "auto"]
        if thresholds := sorted({settings["threshold"] for settings in chosen}):
            parts.append(f"{name} finetunes groups above {', '.join(f'{value:g}' for value in thresholds)}")
    return f" {'; '.join(parts)}." if parts else ""


def _matrices(rows: Sequence[Row]) -> str:
    """Return the accuracy matrices of the best rows that have more than one task."""
    ranked = sorted(rows, key=lambda row: -row.accuracy)
    drawn = "".join(
        f"<figure><figcaption>{escape(row.label)}</figcaption>{svg.matrix(row.matrix, family(row.label))}</figure>"
        for row in ranked[:MATRICES]
        if len(row.matrix) > 1
    )
    limited = f" Of the {MATRICES} best rows." if len(ranked) > MATRICES else ""
    text = f"Accuracy on each task (columns) after each task (rows), mean over seeds.{limited}"
    return f'<h2>Accuracy matrices</h2><p>{text}</p><div class="matrices">{drawn}</div>' if drawn else ""


def _settings(row: Row, links: Mapping[str, str], anchor: str) -> str:
    """Return the settings of a row and its records, each with its accuracy and a link."""
    settings = row.settings
    shown = {k: v for k, v in settings.items() if k not in ("options", "seed") and v not in (None, [], {}, "none")}
    text = ", ".join(f"{name} {value}" for name, value in {**shown, **settings["options"]}.items())
    parts = []
    for record in row.records:
        accuracy = f"{record.accuracy:.2f} %"
        if record.id in links:
            accuracy = f'<a href="{escape(links[record.id])}">{accuracy}</a>'
        seed, flops = escape(str(record.settings["seed"])), quantity(sum(record.flops.values()), "FLOPs")
        parts.append(f"seed {seed}: {accuracy} ({escape(record.id)}, {flops}, {duration(record.seconds['total'])})")
    task_il = mean(record.task_il_accuracy for record in row.records)
    return (
        f'<dt id="{anchor}">{escape(row.label)}</dt><dd>{escape(text)}<br>task-IL accuracy {task_il:.2f} %'
        f"<br>{', '.join(parts)}</dd>"
    )
