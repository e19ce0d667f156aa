"""What a thorough repair of a network did, as a value that prints as a short table. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forgetless.config.units import duration


@dataclass(frozen=True)
class RepairedGroup:
    """One group of a report."""

    name: str
    score: float | None  # Σ Δθ · ∇L; None without the weights from before the update
    parameters: int
    share: float  # of all parameters of the network
    repaired: bool


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy on the held-out examples of one class, before and after the repair."""

    label: int
    examples: int
    before: float
    after: float


@dataclass(frozen=True)
class Report:
    """What a repair did, measured on examples that it did not train on.

        >>> head = RepairedGroup("head", 0.8, 10, 0.1, True)
        >>> print(Report(2.0, 0.5, 0.4, 0.9, 13, (head,), ("2.weight",), (), 100, "sgd", 0.1, 60, 80, 1.5))
        held-out loss 2.000 → 0.500, accuracy 40.0 % → 90.0 % (13 of 100 examples held out)
        group    score    parameters     share  repaired
        head     0.800            10    10.00%  yes
        sgd with rate 0.1, 60 steps kept of 80, 1.5 s

    Args:
        loss_before: The loss on the held-out examples before the repair.
        loss_after: That loss after the repair.
        accuracy_before: The accuracy on them before the repair; None where the labels are not classes.
        accuracy_after: That accuracy after the repair.
        held_out: The number of held-out examples.
        groups: The groups of the network.
        names: The tensors that the repair trained. If no step was kept, they are as before.
        classes: The accuracy on each class with held-out examples.
        examples: The number of examples.
        optimizer: The optimizer that the trials chose.
        lr: The learning rate that the trials chose.
        steps: The steps that were kept; 0 if no repair lowered the held-out loss by more than noise, or if the mean IoU
            of images with labelled pixels fell.
        tried: All steps, including trials and those that were undone.
        seconds: The time of the repair.
        cost: The cost of all repairs so far as a share of the training's, None if no training was observed.
        perplexity_before: For a language model, the perplexity on the held-out examples before the repair.
        perplexity_after: That perplexity after the repair.
        overlap_before: For images with labelled pixels, the mean IoU on the held-out examples before the repair.
        overlap_after: That mean IoU after the repair.
    """

    loss_before: float
    loss_after: float
    accuracy_before: float | None
    accuracy_after: float | None
    held_out: int
    groups: tuple[RepairedGroup, ...]
    names: tuple[str, ...]
    classes: tuple[ClassAccuracy, ...]
    examples: int
    optimizer: str
    lr: float
    steps: int
    tried: int
    seconds: float
    cost: float | None = None
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    overlap_before: float | None = None
    overlap_after: float | None = None

    @property
    def repaired(self) -> tuple[str, ...]:
        """The names of the repaired groups."""
        return tuple(group.name for group in self.groups if group.repaired)

    @property
    def share(self) -> float:
        """The repaired groups' share of all parameters."""
        return sum(group.share for group in self.groups if group.repaired)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        also = ""
        if self.accuracy_before is not None and self.accuracy_after is not None:
            also = f", accuracy {100 * self.accuracy_before:.1f} % → {100 * self.accuracy_after:.1f} %"
        if self.perplexity_before is not None and self.perplexity_after is not None:
            also += f", perplexity {self.perplexity_before:.4g} → {self.perplexity_after:.4g}"
        if self.overlap_before is not None and self.overlap_after is not None:
            also += f", mean IoU {100 * self.overlap_before:.1f} % → {100 * self.overlap_after:.1f} %"
        counts = f"{self.held_out:,} of {self.examples:,} examples held out"
        lines = [f"held-out loss {self.loss_before:.3f} → {self.loss_after:.3f}{also} ({counts})"]
        width = max(len("group"), *(len(group.name) for group in self.groups))
        lines.append(f"{'group':<{width}}  {'score':>7}  {'parameters':>12}  {'share':>8}  repaired")
        for group in self.groups:
            score = "–" if group.score is None else f"{group.score:.3f}"
            line = f"{group.name:<{width}}  {score:>7}  {group.parameters:>12,}  {group.share:>8.2%}"
            lines.append(f"{line}  yes" if group.repaired else line)
        if not self.steps:
            aim = "lowered the held-out loss by more than noise"
            aim += "" if self.overlap_before is None else " without lowering the mean IoU"
            lines.append(f"no repair {aim}, so the weights are unchanged; {duration(self.seconds)}")
        else:
            how = f"{self.optimizer} with rate {self.lr:.2g}, {self.steps} steps kept of {self.tried}"
            lines.append(f"{how}, {duration(self.seconds)}")
        if self.cost is not None:
            lines.append(f"all repairs so far cost {self.cost:.2f} × the training")
        return "\n".join(lines)

    __repr__ = __str__
