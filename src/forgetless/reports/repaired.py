"""One self-contained HTML page about the repair of a finished model. Imports no torch."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from forgetless.config.units import duration, si_prefix
from forgetless.reports.page import template

Cell = tuple[str, Any]  # its text, and the value to sort by
TERMS = {
    "held-out examples": "Every eighth of the given examples. The repair does not train on them; it is judged by them.",
    "group": "Parameters of one part of the network: its stem, a block, the normalisation layers, the head.",
    "score": "By how much the update raised the loss on the examples through this group, to first order: its "
    "displacement times the gradient of the loss. Negative: the update of this group helped.",
    "mean IoU": "For images with labelled pixels. The IoU of a class in an image is the number of its pixels that are "
    "predicted right, as a share of all pixels that have it or are predicted to have it. The mean is over the classes "
    "of each image, and then over the images.",
    "perplexity": "The exponential of the loss of a language model: the number of equally likely tokens among which a "
    "model with this loss would have to choose.",
}


def html(summary: Mapping[str, Any]) -> str:
    """Return the page about a repair, from the contents of its ``report.json``."""
    title = f"Repair of {summary['model']}"
    glossary = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in TERMS.items())
    files = ", ".join(f"{name} {value}" for name, value in summary["files"].items() if value)
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<div class="verdict"><p>{escape(verdict(summary))}</p></div>',
        f'<div class="cards">{"".join(map(_card, _cards(summary)))}</div>',
        "<h2>Groups</h2>",
        _table(("group", "score", "parameters", "share", "repaired"), map(_group_cells, summary["groups"])),
    ]
    if summary["classes"]:
        headings = ("class", "held-out examples", "accuracy before", "accuracy after")
        body += ["<h2>Classes</h2>", _table(headings, map(_class_cells, summary["classes"]))]
    footer = escape(f"{files}; {', '.join(map(' '.join, summary['versions'].items()))}")
    return template("page.html").substitute(title=escape(title), body="\n".join(body), glossary=glossary, footer=footer)


def verdict(summary: Mapping[str, Any]) -> str:
    """Return in one sentence what the repair did."""
    if not summary["steps"]:
        aim = "lowered the loss on the held-out examples"
        aim += "" if summary.get("overlap_before") is None else " without lowering the mean IoU"
        return f"No repair {aim}, so the weights are unchanged."
    repaired = [group for group in summary["groups"] if group["repaired"]]
    share = _percent(sum(group["share"] for group in repaired))
    what = f"The repair of {len(repaired)} of {len(summary['groups'])} groups ({share} of the parameters)"
    loss = f"lowered the held-out loss from {summary['loss_before']:.3f} to {summary['loss_after']:.3f}"
    others = [f"the {name} went from {before} to {after}" for name, before, after in _measurements(summary)]
    return f"{'; '.join([f'{what} {loss}', *others])}."


def _cards(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the headline numbers: a title, a value and a note each."""
    rate = f"{summary['optimizer']}, rate {summary['lr']:.2g}, {summary['steps']} steps kept of {summary['tried']}"
    return [
        *((f"held-out {name}", after, f"before: {before}") for name, before, after in _measurements(summary)),
        ("held-out loss", f"{summary['loss_after']:.3f}", f"before: {summary['loss_before']:.3f}"),
        ("examples", f"{summary['examples']:,}", f"{summary['held_out']:,} of them held out"),
        ("time", duration(summary["seconds"]), rate),
    ]


def _measurements(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what was measured besides the loss: its name, and its values before and after."""
    known = (
        ("accuracy", "accuracy", _percent),
        ("overlap", "mean IoU", _percent),
        ("perplexity", "perplexity", _four_digits),
    )
    measured = [entry for entry in known if summary.get(f"{entry[0]}_before") is not None]
    return [(name, write(summary[f"{key}_before"]), write(summary[f"{key}_after"])) for key, name, write in measured]


def _card(card: tuple[str, str, str]) -> str:
    title, value, note = map(escape, card)
    return f'<div class="card">{title}<b>{value}</b><span>{note}</span></div>'


def _group_cells(group: Mapping[str, Any]) -> list[Cell]:
    score = group["score"]
    return [
        (group["name"], group["name"]),
        ("–", "") if score is None else (f"{score:.3g}", score),
        (si_prefix(group["parameters"]), group["parameters"]),
        (_percent(group["share"]), group["share"]),
        ("yes" if group["repaired"] else "", int(group["repaired"])),
    ]


def _class_cells(line: Mapping[str, Any]) -> list[Cell]:
    name, examples = line["name"], line["examples"]
    accuracies = ((_percent(line[when]), line[when]) for when in ("before", "after"))
    return [(name, name), (str(examples), examples), *accuracies]


def _table(headings: Iterable[str], lines: Iterable[Iterable[Cell]]) -> str:
    """Return a table that can be sorted; each cell has a text and the value to sort by."""
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in headings)
    rows = ""
    for line in lines:
        cells = (f'<td data-v="{escape(str(value))}">{escape(str(text))}</td>' for text, value in line)
        rows += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _four_digits(number: float) -> str:
    return f"{number:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
