"""Select the groups to finetune: by sensitivity, by name, or all. The selection is made once and kept."""

from collections.abc import Collection, Mapping
from typing import final

from torch import nn
from torch.nn.parameter import UninitializedParameter

from forgetless.repair.freezing import check_names, is_frozen, movable
from forgetless.repair.groups import Groups, float_tensors, groups, statistics
from forgetless.repair.profile import Group, Profile
from forgetless.repair.sensitivity import group_changes, select, sensitivity
from forgetless.repair.settings import Finetune

NO_CHOICE = (
    "Call boundary() where the data shifts, use a smaller window (a task must have four), lower the threshold, or name "
    "the groups; to repair the network as it is, use forgetless.finetune(model, fpf.buffer, names of tensors)"
)


@final
class Selection:
    """The groups of a network that are tracked, and those that ``settings.groups`` and ``settings.threshold`` choose.

    ``grouping`` replaces ``forgetless.groups(network, head)``. Parameters that are frozen when the object is made are
    neither tracked nor chosen.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: Finetune,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
    ) -> None:
        if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
            raise ValueError(
                f"{type(network).__name__} has uninitialised (lazy) parameters; call it once on a batch first"
            )
        self._network, self._given = network, (settings, grouping, head)
        self._shapes = _shapes(network)
        self.grouping = groups(network, head) if grouping is None else _partition(network, grouping)
        # Only the module that owns these buffers knows what they mean, so they are not chosen unless named.
        self._unknown = {"buffers"} if grouping is None else set()
        parameters = dict(network.named_parameters())
        frozen = {name for name, parameter in parameters.items() if not (parameter.requires_grad and parameter.numel())}
        frozen.update(*(names for layer, names in statistics(network).items() if is_frozen(layer)))
        live = {group: [name for name in names if name not in frozen] for group, names in self.grouping.items()}
        self._live = {group: names for group, names in live.items() if names}
        self._sizes = {name: tensor.numel() for name, tensor in float_tensors(network).items()}
        self._statistics = [group for group, names in self._live.items() if not parameters.keys() & set(names)]
        if len(self._live) == len(self._statistics):
            raise ValueError(f"every parameter of {type(network).__name__} is frozen (requires_grad=False)")
        self.threshold = settings.threshold
        self.fixed = settings.groups != "auto"
        self.chosen = self._listed(settings.groups) if self.fixed else None

    def present(self) -> "Selection":
        """Return this selection, or a new one if layers of the network were added or replaced since."""
        return self if _shapes(self._network) == self._shapes else Selection(self._network, *self._given)

    @property
    def tracked(self) -> list[str]:
        """The names of all tensors that can move."""
        return [name for names in self._live.values() for name in names]

    def names(self, chosen: Collection[str]) -> list[str]:
        return [name for group in chosen for name in self._live[group]]

    def by_group(self, by_tensor: Mapping[str, float]) -> dict[str, float]:
        """Return the change C_g of each group."""
        return group_changes(by_tensor, self._live, self._sizes)

    def weight_changes(self, by_tensor: Mapping[str, float]) -> list[float]:
        """Return the changes of the tensors that are not statistics, from which shifts are detected."""
        return [by_tensor[name] for g, names in self._live.items() if g not in self._statistics for name in names]

    def scores(self, by_tensor: Mapping[str, float]) -> dict[str, float]:
        """Return S_g from the changes between tasks; empty while there are none."""
        if not by_tensor or not any(self.weight_changes(by_tensor)):
            return {}
        return sensitivity(self.by_group(by_tensor), self._statistics)

    def choice(self, by_tensor: Mapping[str, float]) -> tuple[str, ...]:
        """Return the groups chosen before, or those that these changes select.

        Statistics that never moved belong to layers that train in evaluation mode, so they are not selected. A single
        trainable group is always selected: its S_g is 1, which is never above the threshold 1.
        """
        if self.chosen is not None:
            return self.chosen
        if self.threshold is None:  # with a budget, everything is repaired until a choice was measured to be better
            return tuple(group for group in self._live if group not in self._unknown)
        scores = self.scores(by_tensor)
        weights = [group for group in scores if group not in self._statistics]
        still = {group for group in self._statistics if scores.get(group) == 0}
        selected = tuple(g for g in select(scores, self.threshold) if g not in still | self._unknown)
        return selected or (tuple(weights) if len(weights) == 1 else ())

    def movable(self, chosen: Collection[str]) -> tuple[str, ...]:
        """Return those of these groups that are not frozen now."""
        left = self.owners(movable(self._network, self.names(chosen)))
        return tuple(group for group in chosen if group in left)

    def owners(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the groups that hold any of these tensors."""
        wanted = set(names)
        return tuple(group for group, own in self._live.items() if not wanted.isdisjoint(own))

    def profile(self, by_tensor: Mapping[str, float], comparisons: int) -> Profile:
        """Return the forgetting profile for these changes between tasks."""
        return self.describe(self.scores(by_tensor), self.choice(by_tensor), comparisons)

    def describe(
        self, scores: Mapping[str, float | None], chosen: Collection[str], comparisons: int = 0, note: str = ""
    ) -> Profile:
        """Return a profile with these scores and this choice."""
        counts = {name: parameter.numel() for name, parameter in self._network.named_parameters()}
        sizes = {group: sum(counts.get(name, 0) for name in self._live.get(group, ())) for group in self.grouping}
        total = sum(counts.values())
        lines = (Group(name, scores.get(name), size, size / total, name in chosen) for name, size in sizes.items())
        return Profile(tuple(lines), comparisons, note)

    def why_not(self, by_tensor: Mapping[str, float], advice: str = NO_CHOICE) -> str:
        """Return why nothing can be finetuned, and what to do. The default ``advice`` is for the user's own loop."""
        if chosen := self.choice(by_tensor):
            verb = "are" if len(chosen) > 1 else "is"
            return f"{', '.join(chosen)}, which {verb} chosen, {verb} frozen"
        if scores := self.scores(by_tensor):
            group, score = max(scores.items(), key=lambda item: item[1])
            return f"no S_g is above the threshold {self.threshold}; the highest is {group}, {score:.2f}. {advice}"
        if by_tensor:
            return "no parameter moved. Is this FPF around the network that the optimizer trains?"
        return f"no shift of the data was seen, so no sensitivity is known. {advice}"

    def _listed(self, names: str | Collection[str]) -> tuple[str, ...]:
        chosen = select(dict.fromkeys(self.grouping, 0.0), groups=names)
        frozen = [group for group in chosen if group not in self._live]
        if frozen and names != "all":
            raise ValueError(f"group {frozen[0]!r} is frozen: all its parameters have requires_grad=False")
        return tuple(group for group in chosen if group in self._live)


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def _partition(network: nn.Module, grouping: Mapping[str, Collection[str]]) -> Groups:
    """Return a user's groups, checked: every tensor exists and is in one group only."""
    if not grouping:
        raise ValueError("grouping is empty; give {group: names of tensors}")
    owner: dict[str, str] = {}
    for group, names in grouping.items():
        if not names or isinstance(names, str):
            raise ValueError(f"grouping: group {group!r} is {names!r}; it must be a list of names of tensors")
        check_names(network, names)
        for name in names:
            if name in owner:
                raise ValueError(f"grouping: {name!r} is in both {owner[name]!r} and {group!r}; one group each")
            owner[name] = group
    return {group: tuple(names) for group, names in grouping.items()}
