"""docs/reliability.md: what was done to runs and files, and what became of them."""

from __future__ import annotations

from pages.found import read


def page() -> str:
    """What was done to runs and files, and what became of them."""
    soak, fuzz, cost, long = (read(f"{name}-cpu.json") for name in ("soak", "fuzz", "checkpoints", "long-stream"))
    methods = sorted({run["method"] for run in soak["each"]})
    peaks = long["peak_kilobytes"]
    lines = [
        "# Reliability",
        "",
        "Every number below comes from a record in `benchmarks/records`; `python benchmarks/tables.py` writes this page, and",
        "a test checks that it is what the records give.",
        "",
        "## Killed and started again",
        "",
        f"Runs on the digits, {len(methods)} methods with and without k-FPF, were killed with SIGKILL at random moments and started again,",
        f"{soak['kills']} times in all, {soak['from_checkpoints']} of them with a checkpoint to go on from. Of the {soak['runs']} runs "
        f"{soak['identical']} ended with the record of a run that was left alone, less the times, and",
        f"with the same weights, bit for bit ({soak['device']}, torch {soak['torch']}). Command: `python benchmarks/soak.py`.",
        "",
        "On a GPU a run goes on from its checkpoint too, in deterministic mode bit for bit: `tests/experiments/test_checkpoint.py` checks it where there is one.",
        "",
        "## Damaged and hostile files",
        "",
        f"{fuzz['files']:,} files with bytes changed, cut off or put in, and some made to reach outside their folder or to run code. Command:",
        "`python benchmarks/fuzz.py`.",
        "",
        "| read by | read as what it was | refused with an error that names it | anything else |",
        "| --- | --- | --- | --- |",
        *(f"| {kind} | {c['read']} | {c['refused']} | {c['crashed']} |" for kind, c in fuzz["by_kind"].items()),
        "",
        f"Written outside the target folder: {fuzz['written_outside']}. Code executed: {'yes' if fuzz['code_executed'] else 'none'}. Decoded images that are damaged are",
        "decoded again, which counts as read.",
        "",
        "## What checkpoints cost",
        "",
        f"ER on Seq-MNIST, one every {cost['every']} steps ({cost['kilobytes']} kB each): {cost['best']['with']:.2f} s beside {cost['best']['without']:.2f} s without, the best of "
        f"{len(cost['seconds']['with'])} in turns, {cost['overhead_percent']:+.1f} %.",
        "They are written in a thread. By default there is one a minute. Command: `python benchmarks/checkpoints.py`.",
        "",
        "## A stream that does not end",
        "",
        f"`FPF` in a loop of {long['tasks']:,} tasks, {long['observed']:,} calls of `observe`: the largest memory after task 20 was "
        f"{int(peaks['20']) / 1000:.0f} MB, after the last {int(peaks[str(long['tasks'])]) / 1000:.0f} MB",
        f"({long['growth_percent']:+.1f} %). Command: `python benchmarks/long_stream.py`.",
    ]
    return "\n".join(lines) + "\n"
