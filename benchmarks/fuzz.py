"""Measure how everything that reads files handles thousands of damaged and hostile files.

    python benchmarks/fuzz.py [--count 10000] [--seed 0] [--out FILE]

The files are checkpoints, records, plans, data sets in their own formats, and archives. Bytes are changed, removed or
inserted, and some files try to write outside their folder or to execute code. Each file must be read correctly, or
rejected with an error that names it. Nothing may be written outside the target folder, and no code in a file may run.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import random
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from forgetless.data.download import unpack
from forgetless.data.readers import cifar, images, medmnist, mnist
from forgetless.data.readers.files import DataError
from forgetless.experiments import checkpoint, record
from forgetless.experiments.build import build_run
from forgetless.experiments.plan import read_plan
from forgetless.experiments.run import run as train_run
from forgetless.experiments.settings import resolve
from forgetless.training.events import Stepped
from provenance import provenance

ALLOWED = (checkpoint.CheckpointError, DataError, ValueError)


class Bomb:
    """An object that writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, (f"open({str(self.mark)!r}, 'w').close()",))


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return the data with some bytes changed, removed or inserted."""
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 50))):
        if not damaged:
            break
        place = chance.randrange(min(len(damaged), chance.choice((64, 1024, len(damaged)))))
        kind = chance.randrange(5)
        if kind == 0:
            damaged[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            damaged[place] = chance.choice((0, 255, 127, 128, chance.randrange(256)))
        elif kind == 2:
            del damaged[place:]
        elif kind == 3:
            del damaged[place : place + chance.randrange(1, 64)]
        else:
            damaged[place:place] = chance.randbytes(chance.randrange(1, 64))
    return bytes(damaged)


def seeds(folder: Path, mark: Path) -> dict[str, tuple[list[bytes], str, Callable[[Path], object]]]:
    """Return, by kind, intact files, the place of the damaged file, and the function that reads it."""
    settings, sources = resolve("seq-digits", "derpp", {"epochs": 1, "repair": "k-fpf"})
    run = build_run(settings)
    state = next(
        s for event in run if isinstance(event, Stepped) and (s := run.state_dict()) is not None and event.step > 80
    )
    checkpoint.save(state, {"settings": settings.to_dict()}, folder / "c")
    record.write(train_run(settings, sources), folder / "r")
    plan = b'stream = "seq-digits"\nmethod = ["er", "sgd"]\nlr = [0.1, 0.2]\nseeds = 2\n[[runs]]\nrepair = "fpf"\n'
    idx = b"\0\0\x08\x03" + numpy.array([5, 4, 4], ">u4").tobytes() + bytes(80)
    labels = b"\0\0\x08\x01" + numpy.array([5], ">u4").tobytes() + bytes(5)
    raw = folder / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx))
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    shapes = {"images": (3, 4, 4), "labels": (3, 1)}
    arrays: dict[str, Any] = {
        f"{part}_{what}": numpy.zeros(shape, numpy.uint8)
        for part in ("train", "test")
        for what, shape in shapes.items()
    }
    npz, hostile = io.BytesIO(), io.BytesIO()
    numpy.savez(npz, **arrays)
    numpy.savez(hostile, **(arrays | {"train_images": numpy.array([Bomb(mark)], dtype=object)}))
    npy = io.BytesIO()
    numpy.save(npy, numpy.zeros((2, 3, 4, 4), numpy.uint8))
    pickled = pickle.dumps(Bomb(mark))
    readers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "checkpoint": ("x/checkpoint.safetensors", checkpoint.load),
        "record": ("x/record.json", record.read),
        "plan": ("x/plan.toml", read_plan),
        "mnist": ("mnist/MNIST/raw/train-images-idx3-ubyte.gz", lambda file: mnist.read(file.parents[2])),
        "cifar": ("cifar/cifar-10-batches-bin/data_batch_1.bin", lambda file: cifar.read(file.parents[1])),
        "medmnist": ("med/organamnist.npz", lambda file: medmnist.read(file.parent, "organamnist")),
        "decoded": ("img/decoded/a-b-2x4.npy", lambda file: images.read_decoded(file, (2, 3, 4, 4))),
        "archive": ("unpacked/inside/a.archive", lambda file: unpack(file, file.parent)),
    }
    starts = {
        "checkpoint": [(folder / "c").read_bytes(), pickled, _torch_file(Bomb(mark))],
        "record": [(folder / "r").read_bytes(), pickled],
        "plan": [plan],
        "mnist": [gzip.compress(idx), idx],
        "cifar": [bytes(100), bytes(cifar.ROW * 10)],
        "medmnist": [npz.getvalue(), hostile.getvalue()],
        "decoded": [npy.getvalue(), pickled],
        "archive": archives(),
    }
    return {kind: (starts[kind], *reader) for kind, reader in readers.items()}


def archives() -> list[bytes]:
    """Return intact archives, and archives that write outside their folder or contain links and devices."""
    packed_archives = []
    for name in (
        "data/a.txt",
        "../../escaped.txt",
        "/tmp/forgetless-escaped.txt",
        "data/../../escaped.txt",
        "..\\escaped.txt",
    ):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr(name, b"x" * 500)
        packed_archives.append(packed.getvalue())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            info = tarfile.TarInfo(name)
            info.size = 500
            tar.addfile(info, io.BytesIO(b"x" * 500))
        packed_archives.append(packed.getvalue())
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo("data/link")
            info.type, info.linkname = kind, "../../../escaped.txt"
            tar.addfile(info)
        packed_archives.append(packed.getvalue())
    return packed_archives


def _torch_file(value: object) -> bytes:
    """Return a value as torch saves it."""
    stored = io.BytesIO()
    torch.save(value, stored)
    return stored.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    began = time.perf_counter()
    counts: dict[str, dict[str, int]] = {}
    crashes: list[str] = []
    outside: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "seeds").mkdir()
        mark = base / "executed"
        kinds = seeds(base / "seeds", mark)
        shelter = base / "work"
        (shelter / "mnist").parent.mkdir()
        (base / "seeds" / "mnist").rename(shelter / "mnist")
        for number in range(arguments.count):
            kind = list(kinds)[number % len(kinds)]
            starts, place, read = kinds[kind]
            start = chance.choice(starts)
            intact = chance.random() < 0.05
            file = shelter / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(start if intact else damage(start, chance))
            count = counts.setdefault(kind, {"read": 0, "refused": 0, "crashed": 0})
            before = {path for path in base.rglob("*") if file.parent not in path.parents}
            try:
                read(file)
                count["read"] += 1
            except ALLOWED as error:
                count["refused"] += 1
                if not str(error):
                    crashes.append(f"{kind}: an error without a message, {type(error).__name__}")
            except Exception:
                count["crashed"] += 1
                crashes.append(f"{kind}: {traceback.format_exc()[-1500:]}")
            after = {path for path in base.rglob("*") if file.parent not in path.parents}
            outside += sorted(map(str, after - before))
            if Path("/tmp/forgetless-escaped.txt").exists():
                outside.append("/tmp/forgetless-escaped.txt")
            if kind == "archive":
                for path in file.parent.iterdir():
                    if path.is_file():
                        path.unlink()
        executed = mark.exists()
    outcome = {
        "files": arguments.count, "by_kind": counts, "crashes": len(crashes), "written_outside": len(outside),
        "code_executed": executed, "seconds": round(time.perf_counter() - began, 1), **provenance("cpu"),
    }  # fmt: skip
    print(json.dumps(outcome, indent=1))
    for crash in crashes[:5]:
        print(crash)
    print(outside[:5])
    if arguments.out:
        arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
