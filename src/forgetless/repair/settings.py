"""The settings of a repair: the tracking, and the finetuning of FPF and k-FPF. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forgetless.config.fields import Checked, setting

STEPS, LR = 300, 0.1  # of FPF
THRESHOLDS = {"FPF": 1.0, "k-FPF": 0.3}  # of S_g, in the paper
BUDGET = 0.8  # with searches and measurements, repairs then cost about as much as replay at every step
LANGUAGE_BUDGET, LANGUAGE_BATCH = 0.05, 8  # for causal language models, which memorise the buffer if repaired for long


@dataclass(frozen=True, kw_only=True)
class Tracking(Checked):
    """How the changes of the parameters are followed in a user's loop."""

    window: int = setting(20, "Training steps whose changes are compared; they replace the paper's epochs.", least=1)
    detect: bool = setting(True, "Detect the shifts of the data from the changes of the parameters.")


@dataclass(frozen=True)
class Finetune(Checked):
    """How a network is repaired: which groups are finetuned, when, and how long.

    With a ``budget``, repairs are short and frequent, and their rate, length and groups are found by measuring on
    held-out examples of the buffer. Without one, they follow the schedules of Zhao et al. (2023). The defaults are then
    those of FPF, which repairs once, at the end of the stream (Algorithm 1). ``Finetune.k_fpf`` returns those of k-FPF,
    which also repairs during training (Algorithm 2). Steps and thresholds are the paper's; the learning rates and the
    interval are from the middle of its search grids.
    """

    every: int | None = setting(
        None, "Training steps between two repairs of k-FPF (τ); none: only at the end.", least=1, recorded="always"
    )
    steps: int | None = setting(STEPS, "Steps per repair.", least=1, recorded="always")
    lr: float | None = setting(
        LR, "Learning rate of a repair, annealed to 0 by a cosine.", above=0, option="ft_lr", recorded="always"
    )
    distill: float = setting(
        0.0, "Weight of the distance to the stored logits (λ of k-FPF-KD).", least=0, option="kd", recorded="always"
    )
    groups: str | tuple[str, ...] = setting(
        "auto", "Groups to repair: auto (those that forget; within a budget all), all, or names.",
        expects="auto, all, or names of groups", recorded="always"
    )  # fmt: skip
    threshold: float | None = setting(
        THRESHOLDS["FPF"], "With groups auto: repair the groups whose S_g is above this.", recorded="always"
    )
    batch: int = setting(32, "Examples drawn from the buffer per step of a repair.", least=1, recorded="never")
    pad: int | str = setting(
        0, "Repair on random crops shifted by up to this many pixels; 0: images as in training; auto (the default "
        "within a budget): an eighth of the side, if the network has 2-D convolutions and training does not crop.",
        least=0, choices=("auto",), expects="a whole number of 0 or more, or auto", option="ft_pad"
    )  # fmt: skip
    budget: float | None = setting(
        None, "Examples used by repairs per training example; repairs then tune themselves.", above=0, most=10
    )
    spread: bool = setting(True, "With a budget: repair during training too, not only at the end.", recorded="never")

    def __post_init__(self) -> None:
        if isinstance(self.groups, str) and self.groups not in ("auto", "all"):
            object.__setattr__(self, "groups", (self.groups,))
        super().__post_init__()
        schedule = {"every": self.every, "steps": self.steps, "lr": self.lr, "threshold": self.threshold}
        given = [name for name, value in schedule.items() if value is not None]
        if self.budget is not None and given:
            raise ValueError(f"{given[0]} is {schedule[given[0]]}, but a budget replaces it: give one of the two")
        if self.budget is None and None in (self.steps, self.lr, self.threshold):
            raise ValueError("without a budget, steps, lr and threshold must have values")

    @classmethod
    def k_fpf(
        cls,
        every: int = 500,
        steps: int = 100,
        threshold: float = THRESHOLDS["k-FPF"],
        *,
        lr: float = 0.05,
        **settings: Any,
    ) -> Finetune:
        """Return the settings of k-FPF, with its own defaults."""
        return cls(every=every, steps=steps, threshold=threshold, lr=lr, **settings)

    @classmethod
    def within(cls, budget: float = BUDGET, **settings: Any) -> Finetune:
        """Return the settings of repairs that tune themselves within a budget."""
        schedule: dict[str, Any] = dict.fromkeys(("every", "steps", "lr", "threshold"))
        return cls(**schedule | {"pad": "auto"} | settings, budget=budget)

    @property
    def at_end_only(self) -> bool:
        """Whether the network is repaired only at the end of the stream, as by FPF."""
        return self.every is None if self.budget is None else not self.spread

    def due(self, step: int) -> bool:
        """Return whether a scheduled repair follows this training step (counted from 1)."""
        return self.every is not None and step % self.every == 0
