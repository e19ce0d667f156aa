"""docs/transformers.md: pretrained transformers, in full and with adapters."""

from __future__ import annotations

from statistics import mean

from pages.found import read


def page() -> str:
    """Pretrained transformers, finetuned in full and with adapters; profiles by layer."""
    made = read("transformers.json")
    lines = [
        "# Transformers and adapters",
        "",
        "Every number below, but for those that are said not to, comes from `benchmarks/records/transformers.json`; `python benchmarks/tables.py`",
        "writes this page, and a test checks that it is what the record gives.",
        "",
        "A network of Hugging Face's goes into `FPF` as it is, with or without adapters (peft); what is frozen is neither tracked nor",
        "repaired. A batch is the mapping the network is called with:",
        "",
        "```python",
        "fpf = forgetless.FPF(model, capacity=500, every=50)  # before the loop",
        "fpf.observe(batch, labels, logits)  # after each optimizer.step(), logits = model(**batch).logits",
        "fpf.finish()  # after the loop; then print(fpf.profile())",
        "```",
        "",
        "The whole loops: `examples/transformers_vit.py`, `examples/transformers_text.py`. Both are small,",
        "and pretrained on the spot, since nothing is downloaded: the first on turned digits that are in no task, the second on telling apart",
        "modules of Python's standard library by their docstrings. Then come five tasks of two classes each, of upright digits and of ten",
        "other modules, trained one after the other by plain SGD, in full or with LoRA adapters of rank 8 and the classifier.",
        "",
        f"Test accuracy in percent over all ten classes after the last task, mean ± standard deviation of {made['seeds']} seeds; {made['device']}, torch {made['torch']},",
        f"transformers {made['transformers']}, peft {made['peft']}. Command: `{made['command']}`.",
        "",
    ]
    for name, example in made["examples"].items():
        lines += [
            f"## {name}, buffer of {example['capacity']}",
            "",
            "| trained | | before the last repair | after | gain over plain | repaired | settings |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for kind in ("full", "LoRA"):
            plain = example[kind]["plain"]["after"]["values"]
            for way, row in example[kind].items():
                after = row["after"]
                gains = [value - old for value, old in zip(after["values"], plain, strict=True)]
                repaired, gain, before = "–", "–", "–"
                values = {"lr": example["rates"][kind]}
                if row["settings"] is not None:
                    before = f"{row['before']['mean']:.1f} ± {row['before']['std']:.1f}"
                    gain = f"{mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
                    repaired = f"{100 * row['repaired']:.2f} %"
                    values |= {("ft lr" if key == "lr" else key): value for key, value in row["settings"].items()}
                said = ", ".join(f"{key} {value:g}" for key, value in values.items())
                lines.append(
                    f"| {kind}, {100 * row['trained']:.0f} % | {way} | {before} | {after['mean']:.1f} ± {after['std']:.1f} | {gain} | {repaired} "
                    f"| {said} |"
                )
        lines += [
            "",
            "The forgetting profile: S_g at the end of FPF's runs, mean over the seeds, and in how many of them FPF and k-FPF chose the group.",
            "",
            "| group | parameters | S_g, full | FPF, k-FPF | adapted | S_g, LoRA | FPF, k-FPF |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for group, full in example["full"]["FPF"]["groups"].items():
            cells = [group, f"{full['parameters']:,}"]
            for kind in ("full", "LoRA"):
                once, often = (example[kind][way]["groups"][group] for way in ("FPF", "k-FPF"))
                known = [value for value in once["sensitivity"] if value is not None]
                cells += [f"{once['parameters']:,}"] if kind == "LoRA" else []
                cells += [
                    f"{mean(known):.2f}" if known else "–",
                    f"{once['chosen']}, {often['chosen']}" if known else "–",
                ]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += TRANSFORMER_NOTES
    return "\n".join(lines) + "\n"


TRANSFORMER_NOTES = [
    "## How the settings were chosen",
    "",
    "On pieces of the training data held out of the stream (a sixth of the digits, an eighth of the docstrings), with seed 0, a few values",
    "each and not every combination: SGD's rate from 0.005 to 0.2, that of the finetuning from 0.05 to 0.5, every 25, 50 or 100 steps,",
    "k-FPF's threshold 0.3, 0.15 or 0.1. `run(..., validation=True, rate=..., lr=...)` of the examples repeats any of it. Test data had no part in it.",
    "",
    "## What does not work",
    "",
    "- The BERT has seen eight epochs of pretraining on a few thousand pieces, and its buffer holds a quarter of the stream. What is given",
    "  back is far from what the classes allow: trained on all tasks at once with AdamW the same network is right on more than half of the",
    "  held-out pieces (one seed, not in the record). With adapters, whose base cannot move, it is less still.",
    "- With AdamW in the stream every weight moves about as far as any other, so S_g says little. On validation, one seed each, not in the",
    "  record: on the ViT, pretrained on the turning alone, S_g lay between 0.7 and 1.5 for all groups, and k-FPF's threshold took all",
    "  of them; at a rate of 0.0002 no shift was found from the changes (`boundary()` tells them then); on the BERT, at a rate of 0.0005,",
    "  FPF gained nothing.",
    "- Tasks shorter than four windows (`window`, 20 steps) are not told apart by their changes; make it smaller, or call `boundary()`.",
]
