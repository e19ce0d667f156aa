"""Measure Rotated MNIST, 20 tasks, buffer 500, one epoch: ER, DER and DER++ with the DER authors' settings.

python benchmarks/rot_mnist.py --work FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

from committed import add
from forgetless.experiments import record
from forgetless.experiments.settings import resolve
from seq_mnist import accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    runs = [
        resolve("rot-mnist", method, {"buffer": 500, "seed": seed})[0]
        for method in ("er", "der", "derpp")
        for seed in range(3)
    ]
    for run, accuracy in accuracies(runs, work):
        print(run.label, run.seed, accuracy, flush=True)
    add("rot-mnist", (record.read_run(work, run) for run in runs))


if __name__ == "__main__":
    main()
