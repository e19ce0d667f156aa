"""FPF and k-FPF for anyone's training loop: watch which parameters move, keep a small buffer, repair what forgets.

    fpf = FPF(model, capacity=500, every=1500)
    for x, y in stream:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        fpf.observe(x, y, logits)
    fpf.finish()

Zhao et al. (2023), Algorithm 1 (FPF: one finetuning, in ``finish``) and Algorithm 2 (k-FPF: also after every τ steps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from warnings import warn

import torch
from torch import Tensor, nn

from forgetless import dynamics, finetuning
from forgetless.buffer import Buffer, restore_generator
from forgetless.finetuning import Augment, Finetuned, Forward, Loss
from forgetless.grouping import Groups, counts, float_tensors, unwrap
from forgetless.grouping import groups as derive
from forgetless.tracker import Detector, Row, Tracker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1  # of the state


@dataclass(frozen=True)
class Group:
    """One line of a profile."""

    name: str
    sensitivity: float | None  # S_g; None before a shift of the data was seen, or where all is frozen
    parameters: int
    share: float  # of all parameters of the network
    chosen: bool


@dataclass(frozen=True)
class Profile:
    """Which groups of parameters move when the data shifts, and which of them are finetuned."""

    groups: tuple[Group, ...]
    comparisons: int  # of consecutive tasks, of which the sensitivities are the mean

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.groups if group.chosen)

    @property
    def share(self) -> float:
        """The chosen groups' share of all parameters."""
        return sum(group.share for group in self.groups if group.chosen)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        width = max(len("group"), *(len(group.name) for group in self.groups))
        lines = [f"{'group':<{width}}  {'S_g':>7}  {'parameters':>12}  {'share':>8}  chosen"]
        for group in self.groups:
            score = "–" if group.sensitivity is None else f"{group.sensitivity:.3f}"
            mark = "yes" if group.chosen else ""
            lines.append(
                f"{group.name:<{width}}  {score:>7}  {group.parameters:>12,}  {group.share:>8.3%}  {mark}".rstrip()
            )
        lines.append(f"chosen: {self.share:.3%} of the parameters; shifts of the data compared: {self.comparisons}")
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """A bar for each group's S_g, the chosen ones filled. Needs matplotlib, the extra ``forgetless[plot]``."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(7, 0.6 + 0.35 * len(self.groups)), layout="constrained").subplots()
        names = [group.name for group in self.groups][::-1]
        scores = [group.sensitivity or 0.0 for group in self.groups][::-1]
        colours = ["#c2410c" if group.chosen else "#d6d3d1" for group in self.groups][::-1]
        bars = axes.barh(names, scores, color=colours)
        axes.bar_label(bars, [f"{score:.2f}" for score in scores], padding=3)
        axes.axvline(1.0, color="#57534e", linewidth=0.8, linestyle="--")
        axes.margins(x=0.12)
        axes.set_xlabel("sensitivity $S_g$ (mean over trainable groups: 1)")
        axes.set_title(f"chosen: {self.share:.2%} of the parameters")
        axes.spines[["top", "right"]].set_visible(False)
        return axes


class FPF:
    """Forgetting Prioritized Finetuning around an existing loop; see the head of this file.

    model       any ``nn.Module`` that gives logits; compiled or wrapped ones too
    capacity    examples the buffer holds (reservoir sampling over all that is observed)
    every       τ, the training steps between two finetunings (k-FPF); None: only in ``finish()`` (FPF)
    steps       steps of one finetuning; default 300 without ``every``, 100 with it
    lr          learning rate of the finetuning, annealed to 0 by a cosine
    distill     λ of the term λ · MSE(stored logits, logits); 0: cross-entropy alone (k-FPF-CE), above 0: k-FPF-KD
    batch       examples drawn from the buffer for a step of finetuning
    groups      "auto": chosen by sensitivity; "all"; or names of groups
    threshold   with "auto": groups with S_g above it; default 1 without ``every``, 0.3 with it
    grouping    {group: names of tensors}, in place of ``forgetless.groups(model)``
    head        the module of the output layer, where ``forgetless.groups`` cannot recognise it
    window      steps whose changes are compared; they take the place of the paper's epochs
    detect      find the shifts of the data from the changes of the parameters, until ``boundary()`` tells one
    augment     applied to the inputs drawn from the buffer
    loss        (logits, y) -> loss, in place of cross-entropy
    forward     (model, x) -> logits, where ``model(x)`` does not give them
    autocast    dtype of the finetuning's forward pass, say torch.bfloat16
    device      where the buffer is kept; default: with the network's parameters
    seed        of the reservoir, the draws, and of augmentation and dropout while finetuning

    With "auto" nothing is finetuned before a shift of the data has been seen, since Eq. 1 compares two tasks. S_g is
    the mean over the shifts seen; the groups are chosen at the first finetuning that can, and kept. Deviations from
    the paper are those of ``dynamics.sensitivity`` and ``dynamics.select``. Parameters that are frozen when the
    object is made are neither tracked nor finetuned. Between finetunings ``observe`` costs the write of one batch to
    the buffer, and every ``window`` steps one copy of the parameters and one read by the host.
    """

    def __init__(
        self,
        model: nn.Module,
        capacity: int = 500,
        every: int | None = None,
        steps: int | None = None,
        lr: float = 0.05,
        distill: float = 0.0,
        *,
        batch: int = 32,
        groups: str | Collection[str] = "auto",
        threshold: float | None = None,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
        window: int = 20,
        detect: bool = True,
        augment: Augment | None = None,
        loss: Loss | None = None,
        forward: Forward = finetuning.call,
        autocast: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.every, self.lr, self.distill, self.batch, self.autocast = every, lr, distill, batch, autocast
        self.steps = steps if steps is not None else (300 if every is None else 100)
        self.threshold = threshold if threshold is not None else (1.0 if every is None else 0.3)
        self.window = window
        self.augment, self.loss, self.forward = augment, loss, forward
        finetuning.check_settings(steps=self.steps, lr=lr, distill=distill, batch=batch, autocast=autocast)
        finetuning.check_whole("window", window)
        if every is not None:
            finetuning.check_whole("every", every)

        self._network = unwrap(model)
        self.grouping = derive(self._network, head) if grouping is None else _partition(self._network, grouping)
        parameters = dict(self._network.named_parameters())
        frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
        # What can move, by group; a group without such a tensor is left out.
        self._live = {g: left for g, names in self.grouping.items() if (left := [n for n in names if n not in frozen])}
        self._statistics = [group for group, names in self._live.items() if not parameters.keys() & set(names)]
        self._chosen = None if groups == "auto" else self._listed(groups)

        where = next(iter(parameters.values())).device if device is None else torch.device(device)
        self.buffer = Buffer(capacity, device=where, seed=seed)
        self._generator = torch.Generator(where).manual_seed(seed + 1)
        self._tracker = Tracker(self._network, [name for names in self._live.values() for name in names])
        self._detector = Detector() if detect else None
        self.step = 0
        self.finetunings = 0
        self.shifts: list[int] = []  # the steps after which the data shifted, as told or found
        self._steps_of_window = 0
        self._tracker.start()

    def observe(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None = None) -> Finetuned | None:
        """After ``optimizer.step()``: track, finetune if it is time, then let the reservoir take the batch.

        ``x`` as it is before augmentation, ``y`` its labels, ``logits`` the network's output of this step's forward
        pass (needed with ``distill``). Gives what the finetuning did, if there was one.
        """
        rows = self._rows(x, y, logits)
        self.step += 1
        self._steps_of_window += 1
        if self._steps_of_window == self.window:
            self._mark()
        done = None
        if self.every is not None and self.step % self.every == 0 and len(self.buffer):
            done = self._finetune()
        self.buffer.add(rows)
        return done

    def boundary(self) -> None:
        """Tell that the data shifts here: what is observed next is a new task. From now on no shift is searched for."""
        self._detector = None
        self._mark_short_task()
        if self._tracker.epoch:  # else nothing was observed since the last one
            self.shifts.append(self.step)
            self._tracker.boundary()
            self._tracker.start()
            self._steps_of_window = 0

    def finish(self) -> Finetuned | None:
        """At the end of the stream: finetune once more. Training may go on afterwards, and finish again."""
        if not len(self.buffer):
            raise ValueError("the buffer is empty: call observe() after each training step, before finish()")
        self._mark_short_task()
        done = self._finetune()
        if done is None:
            warn(self._why_not(), stacklevel=2)
        return done

    def sensitivities(self) -> dict[str, float]:
        """S_g of each group, from all shifts of the data seen so far; empty before the first."""
        by_layer = self._tracker.task_changes()
        if not any(by_layer.values()):
            return {}
        return dynamics.sensitivity(dynamics.group_changes(by_layer, self._live), self._statistics)

    def profile(self) -> Profile:
        """Which groups move when the data shifts, and which are finetuned; prints as a table."""
        scores = self.sensitivities()
        chosen = self._choice(scores)
        sizes = counts(self._network, self.grouping)
        total = sum(parameter.numel() for parameter in self._network.parameters())
        groups = (Group(name, scores.get(name), size, size / total, name in chosen) for name, size in sizes.items())
        return Profile(tuple(groups), len(self._tracker.between_tasks))

    def state_dict(self) -> dict[str, Any]:
        """All that ``observe`` and ``finish`` depend on beside the network, as tensors and plain data."""
        return {
            "format": FORMAT,
            "groups": {group: list(names) for group, names in self.grouping.items()},
            "chosen": None if self._chosen is None else list(self._chosen),
            "step": self.step,
            "finetunings": self.finetunings,
            "shifts": list(self.shifts),
            "steps_of_window": self._steps_of_window,
            "generator": self._generator.get_state(),
            "buffer": self.buffer.state_dict(),
            "tracker": self._tracker.state_dict(),
            "detector": None if self._detector is None else self._detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the settings must be those it was saved with, and the network loaded on its own."""
        if state.get("format") != FORMAT:
            raise ValueError(f"the state has format {state.get('format')!r}; this version of forgetless reads {FORMAT}")
        if {group: tuple(names) for group, names in state["groups"].items()} != self.grouping:
            raise ValueError("the state was saved from a network with other groups of parameters")
        buffer = Buffer(self.buffer.capacity, device=self.buffer.device)
        buffer.load_state_dict(state["buffer"])
        self._tracker.load_state_dict(state["tracker"])
        self.buffer = buffer  # only now, so that a state which does not fit changes nothing
        restore_generator(self._generator, state["generator"])
        self._detector = None
        if state["detector"] is not None:
            self._detector = Detector()
            self._detector.load_state_dict(state["detector"])
        self._chosen = None if state["chosen"] is None else tuple(state["chosen"])
        self.step, self.finetunings, self.shifts = state["step"], state["finetunings"], list(state["shifts"])
        self._steps_of_window = state["steps_of_window"]

    def _rows(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """The batch as columns of the buffer, checked before anything is changed."""
        rows = finetuning.pack(x, y)
        if self.distill:
            if logits is None:
                raise ValueError(f"distill is {self.distill}, which needs logits: call observe(x, y, logits)")
            rows["logits"] = logits
        self.buffer.check(rows)
        if logits is not None and self.loss is None and y.device.type == "cpu":
            finetuning.check_labels(y, logits)  # elsewhere the host would wait; there the next finetuning checks
        return rows

    def _mark(self) -> None:
        self._steps_of_window = 0
        self._tracker.mark(None if self._detector is None else self._begins_task)

    def _mark_short_task(self) -> None:
        """A task shorter than a window is compared by what it has."""
        if self._tracker.epoch == 0 and self._steps_of_window:
            self._mark()

    def _begins_task(self, row: Row) -> bool:
        assert self._detector is not None
        by_layer = dict(zip(self._tracker.names, row.changes.tolist(), strict=True))
        by_group = dynamics.group_changes(by_layer, self._live)
        begins = self._detector.see([value for group, value in by_group.items() if group not in self._statistics])
        if begins:
            self.shifts.append(self.step - self.window)
        return begins

    def _finetune(self) -> Finetuned | None:
        chosen = self._choice(self.sensitivities() if self._chosen is None else {})
        if not chosen:
            return None
        done = finetuning.finetune(
            self.model,
            self.buffer,
            [name for group in chosen for name in self._live[group]],
            self.steps,
            self.lr,
            self.distill,
            batch=self.batch,
            augment=self.augment,
            loss=self.loss,
            forward=self.forward,
            autocast=self.autocast,
            generator=self._generator,
        )
        self._chosen = chosen
        self.finetunings += 1
        self._tracker.start()  # what finetuning moved is no change of training, and training now moves it back:
        if self._detector is not None:  # that is no shift of the data
            self._detector.restart()
        return done

    def _choice(self, scores: Mapping[str, float]) -> tuple[str, ...]:
        """The groups to finetune: chosen already, or by these scores; none while there are no scores."""
        return dynamics.select(scores, self.threshold) if self._chosen is None else self._chosen

    def _listed(self, groups: str | Collection[str]) -> tuple[str, ...]:
        """The groups of the setting ``groups``, all of them existing and not frozen."""
        chosen = dynamics.select(dict.fromkeys(self.grouping, 0.0), groups=groups)
        frozen = [group for group in chosen if group not in self._live]
        if frozen and groups != "all":
            raise ValueError(f"group {frozen[0]!r} is frozen: all its parameters have requires_grad=False")
        return tuple(group for group in chosen if group in self._live)

    def _why_not(self) -> str:
        scores = self.sensitivities()
        if scores:
            highest = max(scores, key=lambda group: scores[group])
            why = f"no S_g is above the threshold {self.threshold}; the highest is {highest}, {scores[highest]:.2f}"
        else:
            why = (
                f"no shift of the data was seen in {self.step} steps, so no sensitivity is known: call boundary() "
                "where the data shifts, make the window smaller, or name the groups"
            )
        return f"nothing was finetuned: {why}"


def _partition(network: nn.Module, grouping: Mapping[str, Collection[str]]) -> Groups:
    """A user's groups, checked: every tensor exists and is in one group only. What is in none stays as it is."""
    known = float_tensors(network)
    owner: dict[str, str] = {}
    for group, names in grouping.items():
        if not names or isinstance(names, str):
            raise ValueError(
                f"grouping: group {group!r} is {names!r}; it must be a list of one or more names of tensors"
            )
        for name in names:
            if name not in known:
                raise ValueError(f"grouping: group {group!r} names {name!r}, which is no parameter or float buffer")
            if name in owner:
                raise ValueError(f"grouping: {name!r} is in both {owner[name]!r} and {group!r}; one group each")
            owner[name] = group
    if not owner:
        raise ValueError("grouping is empty; give {group: names of tensors}")
    return {group: tuple(names) for group, names in grouping.items()}
