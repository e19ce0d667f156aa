"""docs/speed.md: on a GPU, on a CPU, beside others."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

from pages.found import read, spread

# What was aimed at on the H200: milliseconds a step by one lane and by eight.
GOALS = {"sgd": (1.7, 0.8), "er": (2.2, 1.3), "der": (2.8, None), "derpp": (3.5, 2.3), "finetuning": (1.6, 0.7)}


def page() -> str:
    gpu, cpu = (read(f"speed-{name}.json") for name in ("h200", "cpu"))
    found = {
        (r["network"], r["size"], r["way"], r["precision"], r["captured"], r["lanes"]): r["milliseconds"]
        for r in gpu["rows"]
    }

    def cell(
        way: str, captured: bool, lanes: int, network: str = "resnet18", size: int = 32, precision: str = "bf16"
    ) -> str:
        milliseconds = found.get((network, size, way, precision, captured, lanes))
        return "–" if milliseconds is None else f"{milliseconds:.3g}"

    def step(way: str, lanes: int) -> float:
        milliseconds: float = found["resnet18", 32, way, "bf16", True, lanes]
        return milliseconds

    def megabytes(way: str, network: str = "resnet18", size: int = 32) -> int:
        (row,) = (
            r
            for r in gpu["rows"]
            if (r["network"], r["size"], r["way"], r["captured"], r["lanes"]) == (network, size, way, True, 1)
        )
        return int(row["megabytes_per_lane"])

    before = {
        row["lanes"]: row["milliseconds"]
        for row in read("speed-h200-before.json")["rows"]
        if (row["network"], row["way"], row["precision"]) == ("mlp", "sgd", "tf32")
    }
    lines = [
        "# Speed",
        "",
        "Every number below comes from a record in `benchmarks/records`; `python benchmarks/tables.py` writes this page, and",
        "a test checks that it is what the records give.",
        "",
        "On a GPU a training step, everything in it, is captured into a CUDA graph and replayed: gathering the batch,",
        "augmentation, the draw from the buffer, forward and backward pass, update, the buffer's taking of the batch. So are",
        "the steps of a finetuning and the evaluation. The host reads nothing inside an epoch. Several runs share the GPU in",
        "lanes, each with its own CUDA stream, memory and random numbers: `forgetless.experiments.lanes.interleave`,",
        "`forgetless.experiments.run.run_lanes`. How it is built: [architecture](architecture.md#the-engine).",
        "",
        "## One H200, ResNet-18, 32×32 images, batch 32 (and 32 replayed), bf16",
        "",
        f"Milliseconds per run and step, everything included; forgetless {gpu['forgetless']}, torch {gpu['torch']}. `finetuning` is a step of k-FPF on all but",
        f"block4. Goals in brackets; {said_of_goals(step)}.",
        "",
        "![milliseconds a step](speed.svg)",
        "",
        "| | called, one lane | captured, one lane | captured, eight lanes | MB a lane |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way in ("sgd", "er", "der", "derpp", "agem", "icarl", "finetuning"):
        one, eight = GOALS.get(way, (None, None))
        lines.append(
            f"| {way} | {cell(way, False, 1)} | {cell(way, True, 1)}{f' ({one})' if one else ''} | "
            f"{cell(way, True, 8)}{f' ({eight})' if eight else ''} | {megabytes(way)} |"
        )
    widths = (1, 2, 4, 8, 16)
    lines += [
        "",
        "SGD by the number of lanes:",
        "",
        "| lanes | " + " | ".join(map(str, widths)) + " |",
        "| --- |" + " --- |" * len(widths),
        "| milliseconds per run and step | " + " | ".join(f"{step('sgd', lanes):.3g}" for lanes in widths) + " |",
        "",
        *parts_of_a_step(),
        "Larger images, captured, one lane / eight lanes (MB a lane), batch 32, bf16:",
        "",
        "| | 64×64, as in Tiny-ImageNet | 224×224, as in PACS (ImageNet's ResNet-18) |",
        "| --- | --- | --- |",
        *(
            f"| {way} | "
            + " | ".join(
                f"{cell(way, True, 1, *large)} / {cell(way, True, 8, *large)} ({megabytes(way, *large)})"
                for large in (("resnet18", 64), ("resnet18_imagenet", 224))
            )
            + " |"
            for way in ("sgd", "er", "derpp", "finetuning")
        ),
        "",
        "VGG-11, 32×32, the same; finetuning is that of its last two layers: "
        + "; ".join(
            f"{way} {cell(way, True, 1, 'vgg11')} / {cell(way, True, 8, 'vgg11')} ({megabytes(way, 'vgg11')})"
            for way in ("sgd", "er", "derpp", "finetuning")
        )
        + ".",
        "",
        "The MLP at batch 10, SGD: "
        f"called {cell('sgd', False, 1, 'mlp', 28, 'fp32')}; captured, one lane {cell('sgd', True, 1, 'mlp', 28, 'tf32')} in tf32 (goal 0.065); eight lanes "
        f"{cell('sgd', True, 8, 'mlp', 28, 'tf32')}. Before kernels were",
        "written for cross-entropy, batches, and a layer with its ReLU (`records/speed-h200-before.json`) "
        f"it took {before[1]:.3g} and {before[8]:.3g}, on another machine.",
        "",
        "Commands (`records/speed-h200.json`):",
        "",
        *(f"- `{command}`" for command in gpu["commands"]),
        "",
    ]
    lines += ["## Whole runs of Seq-CIFAR-10 on one H200", ""]
    parts, precise = (read(f"{name}-h200.json")["parts"] for name in ("comparison", "precision"))
    lines += [
        "Buffer 500, 5 epochs a task, bf16 and eight lanes in one process unless said otherwise; seconds of everything but the",
        "reading of the data. k-FPF with τ 1500 and threshold 0.3, not what was searched for: these are timings. ± is the standard deviation.",
        "",
        "| | runs | seconds | accuracy | command |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, part in parts.items():
        by_label: dict[str, list[float]] = {}
        for made in part["runs"]:
            by_label.setdefault(made["label"], []).append(made["accuracy"])
        accuracies = ", ".join(f"{label} {spread(v)}" for label, v in by_label.items())
        lines.append(f"| {name} | {len(part['runs'])} | {part['seconds']:.0f} | {accuracies} | `{part['command']}` |")
    k_fpf, er, derpp = (parts[f"pack {name}"]["seconds"] for name in ("k-fpf-ce", "er", "derpp"))
    bare = {(row["way"], *row["without"]): row["milliseconds"] for row in read("parts-h200.json")["rows"]}
    least = bare["sgd", "batch norm", "update"] / bare["er", "batch norm", "update"]

    def at_goal(way: str, seconds: float) -> float:
        """What a pack would take if its steps took what was aimed at."""
        slower = (GOALS[way][1] or 0) - step(way, 8)
        steps: int = sum(run["steps"] for run in parts[f"pack {way}"]["runs"])
        return seconds + float(slower) * steps / 1000

    lines += [
        "",
        f"The twelve runs were to take at most 120 s. k-FPF (τ = 1500) took {k_fpf / er:.2f} of ER's time and "
        f"{k_fpf / derpp:.2f} of DER++'s;",
        "the goals of 0.65 and 0.40 are missed, since ER and DER++ became faster than their own goals: a step of plain SGD at",
        f"batch 32 takes {step('sgd', 8) / step('er', 8):.2f} of one of ER at batch 64, and {step('sgd', 8) / step('derpp', 8):.2f} of one of DER++ at 96, for 0.50 and 0.33 of their FLOPs, because small batches fill",
        f"the GPU less. If batch norm, ReLUs, sums with shortcuts and update were for nothing it would be {least:.2f} of ER: what is left are mostly cuDNN's convolutions.",
        f"With steps of ER and DER++ at their goals, {GOALS['er'][1]} and {GOALS['derpp'][1]} ms, k-FPF would take "
        f"{k_fpf / at_goal('er', er):.2f} and {k_fpf / at_goal('derpp', derpp):.2f} of their time.",
        "",
        f"bf16 beside tf32, the same five seeds, accuracy (`records/precision-h200.json`, forgetless {precise['tf32, 5 epochs']['forgetless']}, `{precise['tf32, 5 epochs']['command']}`; bf16: the first five runs of packs):",
        "",
        "| | bf16 | tf32 | difference | its standard error |",
        "| --- | --- | --- | --- | --- |",
        *precisions(precise),
        "",
        "## A CPU",
        "",
        f"Milliseconds a step, the best of five measurements (ResNet-18: of one or two); {cpu['device']}, two cores, torch "
        f"{cpu['torch']}, forgetless {cpu['forgetless']}.",
        "",
        "| | threads | precision | milliseconds |",
        "| --- | --- | --- | --- |",
    ]
    for row in cpu["rows"]:
        lines.append(
            f"| {row['network']}, batch {row['batch']}, {row['way']} | {row['threads']} | {row['precision']} | "
            f"{row['milliseconds']:.3g} |"
        )
    lines += [
        "",
        "So the defaults: fp32; one thread for the MLP with small batches, all of them otherwise; channels-last in bf16 only;",
        "nothing is compiled. `--precision bf16` pays for convolutional networks on CPUs with AMX; where a CPU has no bf16",
        "instructions it is refused.",
        "",
        "Commands:",
        "",
        *(f"- `{command}`" for command in cpu["commands"]),
        "",
        *compiled(),
        *on_arm(),
        *beside_others(),
        *shared_training(),
    ]
    return "\n".join(lines) + "\n"


def said_of_goals(step: Callable[[str, int], float]) -> str:
    goals = [
        (way, lanes, goal) for way, both in GOALS.items() for lanes, goal in zip((1, 8), both, strict=True) if goal
    ]
    missed = [
        f"{way} with {lanes} by {step(way, lanes) / goal - 1:.1%}"
        for way, lanes, goal in goals
        if step(way, lanes) > goal
    ]
    return f"missed: {', '.join(missed)}" if missed else "all of them are met"


def parts_of_a_step() -> list[str]:
    """What they take in eight lanes, by leaving them out."""
    made = read("parts-h200.json")
    found = {(row["way"], *row["without"]): f"{row['milliseconds']:.3g}" for row in made["rows"]}
    said = (
        f"{name} {found[way,]}, without batch norm {found[way, 'batch norm']}, without the update {found[way, 'update']}, without both {found[way, 'batch norm', 'update']}"
        for way, name in (("sgd", "SGD"), ("er", "ER"))
    )
    return [
        f"Where the time goes, by leaving parts of a step out (`{made['command']}`; with batch norm goes what its kernels do besides, ReLU and the sum with the shortcut, which then is not trained), eight lanes: {'; '.join(said)}.",
        "",
    ]


def precisions(parts: dict[str, Any]) -> list[str]:
    """bf16 beside tf32, a row for each way of training."""
    lines = []
    for label in ("k-fpf-ce", "er"):
        tf32 = {made["seed"]: made["accuracy"] for made in parts["tf32, 5 epochs"]["runs"] if made["label"] == label}
        bf16 = [made["accuracy"] for made in parts[f"pack {label}"]["runs"] if made["seed"] in tf32]
        values = list(tf32.values())
        error = ((stdev(bf16) ** 2 + stdev(values) ** 2) / len(values)) ** 0.5
        lines.append(
            f"| {label} | {spread(bf16, 2)} | {spread(values, 2)} | {mean(bf16) - mean(values):+.2f} | {error:.2f} |"
        )
    return lines


def compiled() -> list[str]:
    """A network by ``torch.compile`` beside the network itself."""
    made = read("speed-compiled.json")
    found = {(r["network"], r["batch"], r["way"], r["compile"]): r["milliseconds"] for r in made["rows"]}
    plain, by_torch = (
        next(r for r in made["rows"] if (r["network"], r["compile"]) == ("resnet18", on)) for on in (False, True)
    )
    longer = by_torch["seconds_before"] - plain["seconds_before"]
    pays = 1000 * longer / (plain["milliseconds"] - by_torch["milliseconds"])

    def shown(milliseconds: float) -> str:
        return f"{milliseconds:.0f}" if milliseconds > 100 else f"{milliseconds:.3g}"

    said = "; ".join(
        f"{network}, batch {batch}, {way}: {shown(found[network, batch, way, False])} ms a step as it is, {shown(milliseconds)} compiled"
        for (network, batch, way, is_compiled), milliseconds in found.items()
        if is_compiled
    )
    return [
        f"By `torch.compile`, {made['device']}, torch {made['torch']}, on another machine that is shared and slower: {said}.",
        f"So for the MLP, whose steps are otherwise written out, it does not pay. For ResNet-18 it does: until its first steps were made it took {longer:.0f} s longer, which is made up for",
        f"after about {pays:.0f} steps. From Python: `train(stream, method, torch.compile(network, dynamic=False))`; the finetuning is not compiled.",
        "",
        *(f"- `{command}`" for command in made["commands"]),
        "",
        *compiled_on_a_gpu(),
    ]


def compiled_on_a_gpu() -> list[str]:
    made = read("speed-compiled-h200.json")
    found = {(r["way"], r["lanes"], r.get("compile", False)): r for r in made["rows"]}

    def both(way: str, lanes: int) -> str:
        return f"{found[way, lanes, False]['milliseconds']:.3g} → {found[way, lanes, True]['milliseconds']:.3g}"

    run = read("comparison-h200.json")["parts"]["pack er"]["runs"][0]
    plain, by_torch = (found["er", 1, compiled] for compiled in (False, True))
    longer = by_torch["seconds_before"] - plain["seconds_before"]
    pays = 1000 * longer / (plain["milliseconds"] - by_torch["milliseconds"])
    return [
        f"On an H200 a compiled network is captured like any other. ResNet-18 in bf16, forgetless {made['forgetless']}, milliseconds a step as it is and compiled: one lane, SGD {both('sgd', 1)}, "
        f"ER {both('er', 1)};",
        f"eight lanes, SGD {both('sgd', 8)}, ER {both('er', 8)}. In lanes there is little to gain, and alone ER makes up for the {longer:.0f} s of compiling after {pays:,.0f} steps, where a run of Seq-CIFAR-10 has {run['steps']:,}:",
        "it does not pay, and nothing is compiled.",
        "",
        *(f"- `{command}`" for command in made["commands"]),
        "",
    ]


def on_arm() -> list[str]:
    """An MLP with and without oneDNN."""
    made = read("speed-arm.json")
    found = {(row["batch"], row.get("onednn", False)): row["milliseconds"] for row in made["rows"]}
    said = "; ".join(
        f"batch {batch}: {found[batch, True]:.3g} ms a step with it, {found[batch, False]:.3g} without"
        for batch in (10, 128)
    )
    return [
        f"On Arm torch gives products with a transposed matrix, which the layers of an MLP are, to oneDNN, whose start takes longer than they do. ER, one thread, {made['device']}:",
        f"{said}. So an MLP is computed without it there.",
        "",
        *(f"- `{command}`" for command in made["commands"]),
        "",
    ]


def beside_others() -> list[str]:
    speed = [read(f"versus-{name}.json") for name in ("10", "128", "128-two-threads", "10-arm", "128-arm")]
    limit, bare = (speed[1]["milliseconds_per_step"][way] for way in ("avalanche", "products"))
    limit /= 8
    lines = [
        "## Beside Avalanche, on a CPU",
        "",
        "Milliseconds for a training step of ER on Seq-MNIST (as many examples replayed as new, buffer 500, MLP),",
        f"the best of {len(speed[0]['all']['forgetless'])} runs in turns (on Arm of {len(speed[-1]['all']['forgetless'])}); torch {speed[0]['torch']} (Avalanche on x86: torch {speed[0]['avalanche_torch']}). Command:",
        f"`{speed[0]['command']}`, for the others with `--batch 128` and `--threads 2`. The last column is the matrix products of such a step alone, than which",
        "nothing that trains this network in fp32 can be faster. The goals were 3 × Avalanche at batch 10 and 8 × at 128; the second is missed:",
        f"on one thread of the x86 it would leave {limit - bare:.2f} ms a step for all that is not a matrix product.",
        "",
        "| | batch | threads | forgetless | plain DataLoader loop | Avalanche's Replay | matrix products |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in speed:
        best, slower = result["milliseconds_per_step"], result["times_slower_than_forgetless"]
        lines.append(
            f"| {result['device']} | {result['batch']} | {result['threads']} | {best['forgetless']:.2f} | {best['loader']:.2f} ({slower['loader']:.1f} ×) | "
            f"{best['avalanche']:.2f} ({slower['avalanche']:.1f} ×) | {best['products']:.2f} |"
        )
    return lines


def shared_training() -> list[str]:
    made = read("sharing.json")
    best = {way: min(values) for way, values in made["seconds"].items()}
    return [
        "",
        "## A method and FPF's grid after it",
        "",
        "FPF follows a training, so runs that differ only in it share one. ER on Seq-MNIST without FPF and with five of its learning rates, "
        f"{made['runs']} runs: {best['alone']:.1f} s",
        f"one by one, {best['sharing']:.1f} s together, {made['times_faster']} × faster, with the same accuracies ({made['device']}, one thread, the best of "
        f"{len(made['seconds']['alone'])}).",
        f"Command: `{made['command']}`.",
    ]
