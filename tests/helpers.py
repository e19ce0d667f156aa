"""Small streams and learners for tests."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import run as launcher
from torch.distributed.launcher.api import elastic_launch

from forgetless import Finetune, networks, train
from forgetless.cli import app as cli
from forgetless.compute.engine import Engine
from forgetless.config import catalogue
from forgetless.data.stream import Split, Stream, Task
from forgetless.memory.buffer import Buffer
from forgetless.methods.learner import Learner
from forgetless.methods.sgd import SGD
from forgetless.networks.seed import with_seed

LIMIT = 800  # seconds until something counts as hanging; a machine that is shared may be many times slower than alone


def small_stream(tasks: int = 3, per_class: int = 12, scenario: str = "class", seed: int = 0) -> Stream:
    """Tasks of two classes (or of the same six); 2×2 images whose brightness tells the class."""
    generator = torch.Generator().manual_seed(seed)
    classes = 2 * tasks
    made = []
    for number in range(tasks):
        own = (2 * number, 2 * number + 1) if scenario == "class" else tuple(range(classes))
        y = torch.tensor(own).repeat_interleave(per_class)
        y = y[torch.randperm(len(y), generator=generator)]
        noise = torch.randint(20, (len(y), 1, 2, 2), generator=generator)
        x = (30 * y[:, None, None, None] + noise).to(torch.uint8)
        made.append(Task(Split(x, y), Split(x[: len(x) // 2], y[: len(y) // 2]), own))
    return Stream("small", tuple(made), classes, scenario)


FINETUNE = Finetune(steps=20, lr=0.3, batch=12)
K_FPF = Finetune.k_fpf(15, steps=10, lr=0.3, batch=12)


def small_network(seed=0):
    """A network for ``small_stream``."""
    return with_seed(lambda: networks.mlp(6, inputs=4, hidden=(16,)), seed)


def run_small(method=None, stream=None, model=None, **settings):
    """A run on ``small_stream``: its events, and its result."""
    values = {"epochs": 2, "batch": 6, "lr": 0.2, "replay": 6, "buffer": 36, **settings}
    stream = small_stream(per_class=30) if stream is None else stream
    events = list(train(stream, method or SGD(), small_network() if model is None else model, **values))
    return events, events[-1].result


def narrow_resnet(classes: int, channels: int) -> nn.Module:
    return networks.resnet18(classes, channels=channels, width=4)


def learner(network: nn.Module, stream: Stream, capacity: int = 0, policy: str = "reservoir", **settings) -> Learner:
    values = {"lr": 0.1, "batch": 4, "replay": 3, "weight_decay": 0.0, "seed": 0, **settings}
    buffer = Buffer(capacity, policy=policy) if capacity else None
    return Learner(network, stream, buffer=buffer, engine=Engine(), **values)


def scaled(images):
    """Return uint8 images as inputs in [0, 1]."""
    return images.float() / 255


def weights_of(network):
    """Return copies of the parameters."""
    return [parameter.detach().clone() for parameter in network.parameters()]


def all_equal(tensors, others):
    """Return whether two lists of tensors are equal bit for bit."""
    return all(torch.equal(one, other) for one, other in zip(tensors, others, strict=True))


def lasting(made):
    """A record less what differs between two runs of the same settings: the times."""
    return {name: value for name, value in made.to_dict().items() if name != "seconds"}


def ended(command, **options) -> subprocess.CompletedProcess[str]:
    """A command that has come to its end, with what it wrote.

    torchrun is started once more if threads of gloo were torn down while the interpreter left: on a busy machine torch
    aborts there once in dozens of times, after the last line of the program.
    """
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)
        if "torch.distributed.run" not in command or "terminate called without an active exception" not in done.stderr:
            break
    return done


# The server takes no path from the tests before Python 3.12, so these are modules that are installed.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "forgetless.cli.app",
        "forgetless.experiments.run",
        "matplotlib.figure",
        "pytest",
        "sklearn.datasets",
        "torch._dynamo",
    ]
)


def command(*arguments, cwd, **environment) -> subprocess.CompletedProcess[str]:
    """``forgetless …`` in a process of its own, forked from one that has imported torch, which takes seconds."""
    return _forked(["forgetless", *map(str, arguments)], cwd, environment)


def program(file, *, cwd, **environment) -> subprocess.CompletedProcess[str]:
    """A Python file in a process of its own, forked in the same way; ``cwd`` and the stub programs are importable."""
    return _forked([str(file)], cwd, environment)


def torchrun(*arguments, cwd, **environment) -> subprocess.CompletedProcess[str]:
    """``torchrun …`` forked in the same way. It forks its processes too, instead of starting Python in each."""
    return _forked(["torchrun", *map(str, arguments)], cwd, {"GLOO_SOCKET_IFNAME": "lo", **environment})


def _forked(words, cwd, environment) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
        process = _FORKS.Process(target=_main, args=(words, cwd, {**os.environ, **environment}, out.name, errors.name))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(words, LIMIT)
        texts = [Path(file.name).read_text() for file in (out, errors)]
        return subprocess.CompletedProcess(words, process.exitcode, *texts)


def _main(words, folder, environment, out, errors) -> None:
    gc.freeze()  # imports stay, and searching them for garbage takes longer than most commands
    for number, name in ((1, out), (2, errors)):
        os.dup2(os.open(name, os.O_WRONLY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    if words[0] == "forgetless":
        cli.main()
    elif words[0] == "torchrun":
        launcher.elastic_launch = lambda config, entrypoint: (
            lambda unbuffered, *program: elastic_launch(dataclasses.replace(config, start_method="fork"), _run)(
                program, folder
            )
        )
        launcher.main(words[1:])
    else:
        _run(words, folder)


def _run(words, folder) -> None:
    """Run a Python file as a program."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.argv = list(words)
    sys.path[:0] = [str(folder), str(Path(__file__).parent / "programs")]
    runpy.run_path(words[0], run_name="__main__")


def wait_until(condition, of: subprocess.Popen | None = None) -> None:
    """On a busy machine a process may take its time to begin. What is to come ``of`` one cannot once it has ended."""
    end = time.monotonic() + LIMIT
    while not condition() and (of is None or of.poll() is None):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def in_processes(count: int, program, *arguments) -> str:
    """What a program prints, started in so many processes by torchrun; in one, by Python alone."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    done = ended(
        [sys.executable, *launcher, str(program), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def image_stream(tasks=2, per_task=64, size=8, seed=0):
    """Tasks of two classes, coloured noise around a colour of the class; with crop, flip and normalisation."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(tasks):
        y = torch.tensor([2 * number, 2 * number + 1]).repeat(per_task // 2)
        colour = torch.randint(40, 200, (2 * tasks, 3, 1, 1), generator=generator)
        x = (colour[y] + torch.randint(-40, 40, (per_task, 3, size, size), generator=generator)).to(torch.uint8)
        made.append(Task(Split(x, y), Split(x[:20], y[:20]), (2 * number, 2 * number + 1)))
    return Stream("images", tuple(made), 2 * tasks, "class", (0.5,) * 3, (0.25,) * 3, pad=1, flip=True)


def spied(name):
    """A method that keeps its learner, to look into."""
    kind = catalogue.load("method", name)

    def finish(self, learner):
        self.learner = learner
        kind.finish(self, learner)

    return type("Spied", (kind,), {"finish": finish})


class CNN(nn.Module):
    """A user's network without batch norm."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 5, 3)
        self.conv3 = nn.Conv2d(5, 6, 3)
        self.fc = nn.Linear(6, 10)

    def forward(self, x):
        x = self.conv3(self.conv2(self.conv1(x).relu()).relu()).relu()
        return self.fc(x.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.position = nn.Parameter(torch.zeros(1, 4, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x) + self.position).mean(1))
