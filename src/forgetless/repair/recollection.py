"""What a language model predicted for the sequences of a buffer when they were new.

In a repair, the labels of a small buffer are soon memorised. The predictions of the model that had just learned these
sequences hold more: at every token, a distribution over the next one. So a repair brings a language model back to
these predictions (``divergence``). The most likely tokens of each are kept, in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.modules import unwrap, without_reducer
from forgetless.compute.shards import compute_device
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.memory.labels import NO_LABEL
from forgetless.memory.ragged import INPUTS, pass_size
from forgetless.repair.divergence import RECALLED
from forgetless.repair.held_out import BATCH, evaluating, parts
from forgetless.repair.objective import Objective, logits_of
from forgetless.repair.restoring import Restorer, all_tensors

TOP = 64  # tokens per position whose probabilities are kept
NEWEST = 2.0  # the weight of the sequences that were predicted last, those of the latest training
LABELS = "y"


@dataclass(frozen=True)
class Prediction:
    """The prediction of a sequence: at each position the most likely tokens and the logarithms of their probabilities.

    ``loss`` is the mean cross-entropy of the labels.
    """

    ids: Tensor
    logs: Tensor
    loss: float


@final
class Recollection:
    """Predictions of the sequences that a buffer holds, made at different times."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._known: dict[str, Prediction] = {}
        self._newest: set[str] = set()  # the sequences that were predicted last
        self.predicted = 0  # sequences so far, in all processes

    @torch.no_grad()
    def predict(self, model: nn.Module, buffer: Buffer, processes: Processes = ALONE, *, again: bool = False) -> None:
        """Predict the sequences that have no prediction yet; with ``again`` all, and keep the better predictions.

        All processes must call it together.
        """
        if not all(processes.gather(self._covers(buffer))):
            return
        model, keys = without_reducer(model), _keys(buffer)
        self._known = {key: self._known[key] for key in keys if key in self._known}
        due = torch.tensor([again or key not in self._known for key in keys])
        new = buffer.subset(due) if due.any() else buffer
        due_keys = [key for key, is_due in zip(keys, due.tolist(), strict=True) if is_due]
        size = pass_size({name: buffer[name] for name in buffer.columns}, BATCH)
        newest = set()
        with evaluating(model):
            for start, stop, count in parts(model, len(due_keys), size, processes):
                predictions = self._predict(model, new, start, stop)
                for key, prediction in zip(due_keys[start : start + count], predictions, strict=False):
                    if key not in self._known or prediction.loss < self._known[key].loss:
                        self._known[key] = prediction
                        newest.add(key)
        self.predicted += sum(processes.gather(len(due_keys)))
        if any(processes.gather(bool(newest))):
            self._newest = newest

    def predict_twice(self, model: nn.Module, buffer: Buffer, before: Mapping[str, Tensor]) -> None:
        """Predict all sequences with the weights ``before`` and the present ones, and keep the better predictions."""
        network = unwrap(model)
        tensors = all_tensors(network)
        names = [name for name, _ in network.named_parameters() if name in before]
        present = Restorer(network, names, host=True)
        try:
            with torch.no_grad():
                for name in names:
                    tensors[name].copy_(before[name])
            self.predict(model, buffer)
        finally:
            present.restore()
        self.predict(model, buffer, again=True)

    def teach(self, buffer: Buffer) -> Buffer | None:
        """Return a buffer with the same examples and their predictions; None if one has no prediction."""
        keys = _keys(buffer) if self._covers(buffer) else []
        if not keys or any(key not in self._known for key in keys):
            return None
        known = [self._known[key] for key in keys]
        width, top = buffer[INPUTS].shape[1] - 1, known[0].ids.shape[1]
        ids = torch.zeros(len(keys), width, top, dtype=torch.int32)
        logs = torch.zeros(len(keys), width, top, dtype=torch.float16)
        for place, prediction in enumerate(known):
            ids[place, : len(prediction.ids)] = prediction.ids
            logs[place, : len(prediction.logs)] = prediction.logs
        weight = torch.tensor([NEWEST if key in self._newest else 1.0 for key in keys])
        columns = {f"{RECALLED}.ids": ids, f"{RECALLED}.logs": logs, f"{RECALLED}.weight": weight}
        return buffer.subset(slice(None), **columns)

    def loss(self, buffer: Buffer, processes: Processes = ALONE) -> float:
        """Return the mean loss of the labels of the held-out sequences when they were predicted."""
        labels = (buffer[LABELS][::HELD_OUT, 1:] != NO_LABEL).sum(1).tolist()
        losses = [self._known[key].loss for key in _keys(buffer)[::HELD_OUT]]
        total = sum(count * loss for count, loss in zip(labels, losses, strict=True))
        totals, counts = zip(*processes.gather((total, sum(labels))), strict=True)
        return float(sum(totals) / sum(counts))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later calls depend on."""
        known = {key: asdict(prediction) for key, prediction in self._known.items()}
        return {"known": known, "newest": sorted(self._newest), "predicted": self.predicted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        self._known = {key: Prediction(**prediction) for key, prediction in state["known"].items()}
        self._newest, self.predicted = set(state["newest"]), state["predicted"]

    def _covers(self, buffer: Buffer) -> bool:
        """Return whether the buffer holds sequences of tokens with a label for each."""
        rows = {name: buffer[name] for name in buffer.columns} if len(buffer) else {}
        return INPUTS in rows and self._objective.counts_tokens(rows) and rows[INPUTS].shape == rows[LABELS].shape

    def _predict(self, model: nn.Module, buffer: Buffer, start: int, stop: int) -> list[Prediction]:
        """Return the predictions of some sequences; none if the output has no logits for each token."""
        device = compute_device(unwrap(model))
        rows = {name: column.to(device) for name, column in buffer.part(start, stop).items()}
        with self._objective.cast(device):
            logits = logits_of(self._objective.output(model, self._objective.plain_inputs(rows), rows))
        if not isinstance(logits, Tensor) or logits.shape[:2] != rows[LABELS].shape:
            return []
        return [_prediction(*sequence) for sequence in zip(logits, rows[LABELS], strict=True)]


def _prediction(logits: Tensor, labels: Tensor) -> Prediction:
    """Return what the logits of one sequence, of shape (tokens, vocabulary), predict up to the last label."""
    end = _end(labels)
    scores, labels = logits[: end - 1].float(), labels[1:end]
    total = scores.logsumexp(1, keepdim=True)
    top = scores.topk(min(TOP, scores.shape[1]), 1)
    loss = float(F.cross_entropy(scores, labels.long(), ignore_index=NO_LABEL))
    return Prediction(top.indices.to("cpu", torch.int32), (top.values - total).to("cpu", torch.float16), loss)


def _keys(buffer: Buffer) -> list[str]:
    """Return a key for each sequence, made from its tokens and labels up to the last label."""
    rows = zip(buffer[INPUTS].cpu().long(), buffer[LABELS].cpu().long(), strict=True)
    contents = [torch.stack(row)[:, : _end(row[1])].numpy().tobytes() for row in rows]
    return [blake2b(content, digest_size=16).hexdigest() for content in contents]


def _end(labels: Tensor) -> int:
    """Return the number of tokens up to the last label."""
    places: list[int] = (labels != NO_LABEL).nonzero().flatten().tolist()
    return places[-1] + 1 if places else 1
