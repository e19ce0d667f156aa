"""Rotated MNIST, 20 tasks, buffer 500, one epoch: ER, DER, DER++ with the DER authors' settings, three seeds.

python benchmarks/rot_mnist.py --work FOLDER
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from forgetless.experiments.settings import resolve
from seq_mnist import accuracies

RECORDS = Path(__file__).parent / "records" / "rot-mnist"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    runs = [
        resolve("rot-mnist", method, {"buffer": 500, "seed": seed})[0]
        for method in ("er", "der", "derpp")
        for seed in range(3)
    ]
    RECORDS.mkdir(parents=True, exist_ok=True)
    for run, accuracy in accuracies(runs, work):
        print(run.label, run.seed, accuracy, flush=True)
        shutil.copyfile(work / run.id / "record.json", RECORDS / f"{run.label}-{run.seed}.json")


if __name__ == "__main__":
    main()
