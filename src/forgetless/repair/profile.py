"""The forgetting profile: which groups of parameters move when the data shifts, and which are finetuned."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Group:
    """One line of a profile."""

    name: str
    sensitivity: float | None  # S_g, or with a budget Σ Δθ · ∇L; None while unknown, or if the whole group is frozen
    parameters: int  # that are not frozen
    share: float  # of all parameters of the network, including frozen ones
    chosen: bool


@dataclass(frozen=True)
class Profile:
    """Which groups of parameters move when the data shifts, and which of them are finetuned.

        >>> print(Profile((Group("body", 0.5, 90, 0.9, False), Group("head", 1.5, 10, 0.1, True)), comparisons=4))
        group      S_g    parameters     share  chosen
        body     0.500            90   90.000%
        head     1.500            10   10.000%  yes
        chosen: 10.000% of the parameters; shifts of the data compared: 4

    Args:
        groups: The groups of the network.
        comparisons: The number of comparisons of consecutive tasks over which the sensitivities are averaged.
        note: With a budget, what the repairs did and cost.
    """

    groups: tuple[Group, ...]
    comparisons: int
    note: str = ""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the chosen groups."""
        return tuple(group.name for group in self.groups if group.chosen)

    @property
    def share(self) -> float:
        """The chosen groups' share of all parameters."""
        return sum(group.share for group in self.groups if group.chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        name = "score" if self.note else "S_g"
        width = max(len("group"), *(len(group.name) for group in self.groups))
        lines = [f"{'group':<{width}}  {name:>7}  {'parameters':>12}  {'share':>8}  chosen"]
        for group in self.groups:
            score = "–" if group.sensitivity is None else f"{group.sensitivity:.3f}"
            line = f"{group.name:<{width}}  {score:>7}  {group.parameters:>12,}  {group.share:>8.3%}"
            lines.append(f"{line}  yes" if group.chosen else line)
        note = self.note or f"shifts of the data compared: {self.comparisons}"
        lines.append(f"chosen: {self.share:.3%} of the parameters; {note}")
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw a bar for the score of each group, with the chosen ones filled. Needs the extra ``forgetless[plot]``."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(7, 0.6 + 0.35 * len(self.groups)), layout="constrained").subplots()
        names = [group.name for group in self.groups][::-1]
        scores = [group.sensitivity or 0.0 for group in self.groups][::-1]
        colours = ["#c2410c" if group.chosen else "#d6d3d1" for group in self.groups][::-1]
        bars = axes.barh(names, scores, color=colours)
        axes.bar_label(bars, [f"{score:.2f}" for score in scores], padding=3)
        axes.margins(x=0.12)
        if self.note:  # the scores are not S_g
            axes.set_xlabel("score")
        else:
            axes.set_xlabel("sensitivity $S_g$ (mean over trainable groups: 1)")
            axes.axvline(1.0, color="#57534e", linewidth=0.8, linestyle="--")
        axes.set_title(f"chosen: {self.share:.2%} of the parameters")
        axes.spines[["top", "right"]].set_visible(False)
        return axes
