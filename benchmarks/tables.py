"""docs/results.md from the committed records: the paper's figure, ours, the difference.

python benchmarks/tables.py            # writes the page
python benchmarks/tables.py --check    # fails if the page is not what the records give
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev

from forgetless import record

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"

# The paper's table of other networks, MLP column: Seq-MNIST, buffer 500, one epoch (mean, standard deviation).
PAPER_MLP = {
    "joint": (95.58, 0.33), "sgd": (19.64, 0.07), "oewc": (20.69, 1.34), "gdumb": (90.60, 0.37),
    "k-fpf-ce": (90.63, 0.57), "er": (86.73, 1.03), "fpf+er": (91.15, 0.16), "agem": (51.03, 4.94),
    "fpf+agem": (89.26, 0.52), "icarl": (58.12, 1.94), "fpf+icarl": (80.83, 0.49), "fdr": (83.79, 4.15),
    "fpf+fdr": (89.67, 0.37), "der": (91.17, 0.94), "fpf+der": (91.25, 0.89), "derpp": (91.18, 0.74),
    "fpf+derpp": (91.22, 0.67),
}  # fmt: skip

# The DER authors' table: Rotated MNIST, buffer 500, one epoch.
DER_AUTHORS = {"er": 88.91, "der": 92.24, "derpp": 92.77}


def rows(folder: Path) -> dict[str, list[record.Record]]:
    found: dict[str, list[record.Record]] = {}
    for file in sorted(folder.glob("*-[0-9].json")):
        made = record.read(file)
        found.setdefault(made.label, []).append(made)
    return found


def settings(records: list[record.Record]) -> str:
    """What a row was trained with, beyond what all rows share."""
    first = records[0].settings
    names = ["lr", "batch", "replay"] if first["method"] not in ("sgd", "joint", "oewc", "gdumb") else ["lr", "batch"]
    values = {name: first[name] for name in names} | first["options"]
    if first["repair"] != "none":
        values |= {name: first[name] for name in ("ft_lr", "every", "kd") if first[name]}
        if first["groups"] != "auto":
            values["groups"] = " ".join(first["groups"])
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def finetuned(records: list[record.Record]) -> str:
    """The groups chosen, with how many seeds chose them where they differ."""
    chosen: dict[str, int] = {}
    for made in records:
        if made.chosen:
            name = " ".join(made.chosen)
            chosen[name] = chosen.get(name, 0) + 1
    if len(chosen) == 1:
        return next(iter(chosen))
    return "; ".join(f"{name} ({count} of {len(records)})" for name, count in chosen.items())


def page() -> str:
    mlp = rows(HERE / "records" / "seq-mnist")
    lines = [
        "# Results",
        "",
        "Every number below comes from a record in `benchmarks/records`, which holds settings, versions and device;",
        "`python benchmarks/tables.py` writes this page, and a test checks that it is what the records give.",
        "",
        "## Seq-MNIST, MLP, buffer 500, one epoch",
        "",
    ]
    first = next(iter(mlp.values()))[0]
    runs = sum(map(len, mlp.values()))
    minutes = sum(made.seconds["total"] for found in mlp.values() for made in found) / 60
    lines += [
        "The paper's column for the MLP. Settings were chosen on the validation split (10 % of the training images),",
        "mean of two seeds for each point of the grids in `benchmarks/seq_mnist.py`; the whole grid is in",
        "`records/seq-mnist/search.json`. The chosen point of each row was then trained on all training images with",
        "five seeds. Accuracy in percent, mean ± standard deviation.",
        "",
        f"Device: {first.device}, one thread a run, {minutes:.0f} minutes in all for the {runs} final runs; "
        f"torch {first.versions['torch']}.",
        "",
        "Commands: `python benchmarks/seq_mnist.py search --work FOLDER`, then",
        "`python benchmarks/seq_mnist.py final --work FOLDER`.",
        "",
        "| | paper | ours | difference | GFLOPs | finetuned groups | settings |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label, (paper, deviation) in PAPER_MLP.items():
        found = mlp[label]
        accuracies = [made.accuracy for made in found]
        gflops = mean(sum(made.flops.values()) for made in found) / 1e9
        lines.append(
            f"| {label} | {paper:.2f} ± {deviation:.2f} | {mean(accuracies):.2f} ± {stdev(accuracies):.2f} | "
            f"{mean(accuracies) - paper:+.2f} | {gflops:.0f} | {finetuned(found) or '–'} | {settings(found)} |"
        )
    rot = rows(HERE / "records" / "rot-mnist")
    lines += [
        "",
        "## Rotated MNIST, MLP, buffer 500, one epoch",
        "",
        "20 tasks, the DER authors' settings, three seeds; their published accuracies beside ours. Command:",
        "`python benchmarks/rot_mnist.py --work FOLDER`.",
        "",
        "| | DER authors | ours | difference | settings |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, published in DER_AUTHORS.items():
        found = rot[label]
        accuracies = [made.accuracy for made in found]
        lines.append(
            f"| {label} | {published:.2f} | {mean(accuracies):.2f} ± {stdev(accuracies):.2f} | "
            f"{mean(accuracies) - published:+.2f} | {settings(found)} |"
        )
    lines += ["", "## Speed on a CPU", ""]
    speed = [json.loads((HERE / "records" / f"versus-{batch}.json").read_text()) for batch in (10, 128)]
    lines += [
        "Milliseconds for a training step of ER on Seq-MNIST (as many examples replayed as new, buffer 500, MLP,",
        f"one thread), the best of three runs in turns; {speed[0]['device']}, torch {speed[0]['torch']} (Avalanche: "
        f"torch {speed[0]['avalanche_torch']}). Command:",
        "`python benchmarks/versus_avalanche.py --batch 10 --avalanche PYTHON`.",
        "",
        "| batch | forgetless | plain DataLoader loop | Avalanche's Replay |",
        "| --- | --- | --- | --- |",
    ]
    for result in speed:
        best, slower = result["milliseconds_per_step"], result["times_slower_than_forgetless"]
        lines.append(
            f"| {result['batch']} | {best['forgetless']:.2f} | {best['loader']:.2f} ({slower['loader']:.1f} ×) | "
            f"{best['avalanche']:.2f} ({slower['avalanche']:.1f} ×) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(
            0
            if PAGE.read_text() == page()
            else "docs/results.md is not what the records give: run benchmarks/tables.py"
        )
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
