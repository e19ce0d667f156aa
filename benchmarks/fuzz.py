"""Damaged and hostile files, thousands of them, given to everything that reads files.

    python benchmarks/fuzz.py [--count 10000] [--seed 0] [--out FILE]

Checkpoints, records, plans, data sets in their own formats, and archives: bytes changed, cut off or put in, and some
made to reach outside or to run code. Each must be read as what it was, or refused with an error of forgetless that
names the file; nothing may be written outside the folder it is unpacked into, and no code in it may run.
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
from forgetless.experiments import run as build
from forgetless.experiments.settings import resolve
from forgetless.experiments.sweep import read_plan
from forgetless.training.events import Stepped
from provenance import provenance

ALLOWED = (checkpoint.CheckpointError, DataError, ValueError)


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, (f"open({str(self.mark)!r}, 'w').close()",))


def damage(data: bytes, chance: random.Random) -> bytes:
    """Some of its bytes changed, lost, doubled, or others put in."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 50))):
        if not made:
            break
        place = chance.randrange(min(len(made), chance.choice((64, 1024, len(made)))))
        kind = chance.randrange(5)
        if kind == 0:
            made[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[place] = chance.choice((0, 255, 127, 128, chance.randrange(256)))
        elif kind == 2:
            del made[place:]
        elif kind == 3:
            del made[place : place + chance.randrange(1, 64)]
        else:
            made[place:place] = chance.randbytes(chance.randrange(1, 64))
    return bytes(made)


def seeds(folder: Path, mark: Path) -> dict[str, tuple[list[bytes], str, Callable[[Path], object]]]:
    """By kind: files to start from, where the damaged one is put, and what reads it."""
    settings, sources = resolve("seq-digits", "derpp", {"epochs": 1, "repair": "k-fpf"})
    run = build.start(settings)
    state = next(
        s for event in run if isinstance(event, Stepped) and (s := run.state_dict()) is not None and event.step > 80
    )
    checkpoint.save(state, {"settings": settings.to_dict()}, folder / "c")
    record.write(build.run(settings, sources), folder / "r")
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
    """Good ones, and ones that reach outside, link, or claim to be huge."""
    made = []
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
        made.append(packed.getvalue())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            info = tarfile.TarInfo(name)
            info.size = 500
            tar.addfile(info, io.BytesIO(b"x" * 500))
        made.append(packed.getvalue())
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo("data/link")
            info.type, info.linkname = kind, "../../../escaped.txt"
            tar.addfile(info)
        made.append(packed.getvalue())
    return made


def _torch_file(value: object) -> bytes:
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
            whole = chance.random() < 0.05
            file = shelter / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(start if whole else damage(start, chance))
            count = counts.setdefault(kind, {"read": 0, "refused": 0, "crashed": 0})
            before = {path for path in base.rglob("*") if file.parent not in path.parents}
            try:
                read(file)
                count["read"] += 1
            except ALLOWED as error:
                count["refused"] += 1
                if not str(error):
                    crashes.append(f"{kind}: an error that says nothing, {type(error).__name__}")
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
    found = {
        "files": arguments.count, "by_kind": counts, "crashes": len(crashes), "written_outside": len(outside),
        "code_executed": executed, "seconds": round(time.perf_counter() - began, 1), **provenance("cpu"),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    for crash in crashes[:5]:
        print(crash)
    print(outside[:5])
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
