"""Measure the time that batch norm and the update take of a training step, by leaving them out.

    python benchmarks/parts.py [--ways sgd,er] [--lanes 8] [--out FILE]

ResNet-18, 32×32 images, batch 32 (and 32 replayed), bf16, on a GPU, measured as in ``speed.py``, all in one process.
A step without batch norm or update computes nothing useful; its time shows what remains if they were free. Leaving out
batch norm also leaves out what its kernels compute besides: the ReLU, and the sum with the shortcut, whose convolutions
then have no backward pass.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from forgetless.methods.learner import Learner
from forgetless.networks.norm import batch_norm
from provenance import provenance
from speed import measure


@contextmanager
def without(*parts: str) -> Iterator[None]:
    """Replace parts of the step by nothing while the context is open."""

    def unchanged(bn: Any, x: Tensor, **_: Any) -> Tensor:
        return x

    norm = unchanged if "batch norm" in parts else batch_norm
    descend = (lambda *_: None) if "update" in parts else Learner.descend
    with patch("forgetless.networks.resnet.batch_norm", norm), patch.object(Learner, "descend", descend):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="sgd,er")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    precision = "bf16" if arguments.device == "cuda" else "fp32"
    case = argparse.Namespace(
        network=arguments.network, size=None, batch=32, steps=arguments.steps, device=arguments.device,
        precision=precision, compile=False, threads=1, onednn=False,
    )  # fmt: skip
    rows = []
    measure("sgd", arguments.lanes, True, case)  # compiles the kernels and lets cuDNN choose its own
    for way in arguments.ways.split(","):
        for parts in ((), ("batch norm",), ("update",), ("batch norm", "update")):
            with without(*parts):
                timing = measure(way, arguments.lanes, True, case)
            rows.append(
                {"way": way, "lanes": arguments.lanes, "without": parts, "milliseconds": timing["milliseconds"]}
            )
            print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"rows": rows, **provenance(arguments.device)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
