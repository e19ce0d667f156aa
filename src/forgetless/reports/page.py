"""One self-contained HTML page of records: a verdict, sortable tables, charts, settings, a glossary. Imports no torch.

The HTML, CSS and script are in ``page.html``; ``section.html`` is the part of the page that each stream has.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from statistics import mean
from string import Template

from forgetless.config.units import duration, quantity
from forgetless.experiments.record import Record
from forgetless.reports import svg
from forgetless.reports.charts import thresholds
from forgetless.reports.glossary import glossary, meaning, with_links
from forgetless.reports.rows import HEADINGS, Row, best_rows, by_stream, cells, profile_row, table_rows
from forgetless.reports.verdict import cards, verdict

ABOVE = "A repair finetunes the groups above its threshold."
REPAIRED_LATER = " Without --anytime, FPF repairs only after the last task and k-FPF at its interval."
FILTER = '<input type="search" placeholder="Filter rows" aria-label="Filter rows">'  # of a long table and its charts
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
    text, footer = "\n".join(body), "<br>".join(map(escape, origins))
    return template("page.html").substitute(title=escape(title), body=text, glossary=glossary(text), footer=footer)


def template(name: str) -> Template:
    """Return a template of this folder."""
    return Template(files("forgetless.reports").joinpath(name).read_text(encoding="utf-8"))


def _section(stream: str, records: Sequence[Record], links: Mapping[str, str], anchor: str) -> str:
    """Return the part of the page about one stream."""
    rows = table_rows(records)
    looks, best = svg.row_styles(rows), best_rows(rows)
    lines = [_line(row, looks[row.label], f"{anchor}-{number}", row in best) for number, row in enumerate(rows)]
    several = [row for row in sorted(rows, key=lambda row: -row.accuracy) if len(row.records[0].accuracy_matrix) > 1]
    unrepaired = any(r.settings["repair"] != "none" and not r.settings.get("anytime") for r in records)
    profiled, limits = profile_row(rows) or rows[0], thresholds(rows)
    mixed = profiled.settings["repair"] == "k-fpf"
    named = min(len(rows), svg.NAMED)
    below = [f"{label} {accuracy:.1f} %" for label, accuracy in svg.far_below(rows).items()]
    below[5:] = [f"and {len(below) - 5} more"] if len(below) > 5 else []
    return template("section.html").substitute(
        verdict="".join(map(_verdict, verdict(rows))),
        cards="".join(
            f'<div class="card">{escape(title)}<b>{escape(value)}</b><span>{with_links(note)}</span></div>'
            for title, value, note in cards(rows)
        ),
        summary=escape(_summary(stream, rows)),
        headings="".join(
            f'<th scope="col"><button type="button" title="{escape(meaning(name.split()[0]))}">{name}</button></th>'
            for name in HEADINGS
        ),
        lines="".join(lines),
        filter=FILTER if len(rows) > svg.NAMED else "",
        unrepaired=REPAIRED_LATER if unrepaired else "",
        limited="" if named == len(rows) else f" {named} of {len(rows)} rows have labels.",
        below=f" Far below the others: {escape(', '.join(below))}." if below else "",
        anytime=svg.anytime(rows, looks),
        cost=svg.cost(rows, looks),
        profile=svg.profile(profiled.sensitivity, limits),
        dynamics=svg.dynamics(profiled.records[0], limits),
        profiled=escape(profiled.label),
        seed=escape(str(profiled.settings["seed"])),
        rule=ABOVE if limits else "Repairs within a budget do not depend on it.",
        colours="The colour is that of the repair which chooses the group." if limits else "",
        mixed=" It includes what finetuning moved." if mixed else "",
        matrices="".join(
            f'<figure data-row="{label}"><figcaption>{label}</figcaption>{svg.matrix(row)}</figure>'
            for label, row in ((escape(row.label), row) for row in several[:MATRICES])
        ),
        best=f" Of the {MATRICES} best rows." if len(several) > MATRICES else "",
        settings="".join(_settings(row, links, f"{anchor}-{number}") for number, row in enumerate(rows)),
    )


def _verdict(sentences: Sequence[str]) -> str:
    """Return the first two sentences as a paragraph and the others as a list."""
    items = "".join(f"<li>{with_links(text)}</li>" for text in sentences[2:])
    lead = f"<p>{with_links(' '.join(sentences[:2]))}</p>"
    return (lead + (f"<ul>{items}</ul>" if items else "")).replace(" %", "&nbsp;%")


def _summary(stream: str, rows: Sequence[Row]) -> str:
    """Return the stream, networks, buffers and seeds of a section in words."""
    networks = ", ".join(dict.fromkeys(row.settings["network"] for row in rows))
    buffers = ", ".join(dict.fromkeys(str(row.settings["buffer"]) for row in rows))
    counts = [len(row.records) for row in rows]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{stream}, network {networks}, buffer {buffers}, seeds per row: {seeds}"


def _line(row: Row, look: svg.Style, anchor: str, best: bool) -> str:
    """Return a line of the table; each cell carries its unrounded value for sorting."""
    texts = [escape(text) for text in cells(row)]
    mark = f'<svg class="{look.colour}" viewBox="-6 -6 12 12"><path d="{look.marker}"/></svg>'
    texts[0] = f"{mark}{with_links(row.name)}{escape(row.label.removeprefix(row.name))}"
    texts[1] = f'<a href="#{anchor}">{f"<b>{texts[1]}</b>" if best else texts[1]}</a>'
    values = (row.label, row.accuracy, row.forgetting, row.tflops, row.seconds, row.share)
    keys = ["" if value is None else escape(str(value)) for value in values]
    line = "".join(f'<td data-v="{key}">{text}</td>' for key, text in zip(keys, texts, strict=True))
    return f'<tr data-row="{escape(row.label)}">{line}</tr>'


def _settings(row: Row, links: Mapping[str, str], anchor: str) -> str:
    """Return the settings of a row and its records, each with its accuracy and a link."""
    settings = {**row.settings, **row.settings["options"]}
    shown = {k: v for k, v in settings.items() if k not in ("options", "seed") and v not in (None, [], {}, "none")}
    text = ", ".join(f"{name} {value}" for name, value in shown.items())
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
