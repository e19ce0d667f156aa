"""Which groups of a network are finetuned: by sensitivity, by list, or all; chosen once and kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from forgetless.config.fields import check_value
from forgetless.repair import sensitivity as dynamics
from forgetless.repair.finetune import check_names, movable
from forgetless.repair.groups import Groups, counts, float_tensors, is_norm, statistics
from forgetless.repair.groups import groups as derive
from forgetless.repair.profile import Group, Profile

STILL = "no parameter moved"


class Selection:
    """The groups of ``network`` that are tracked, and those that are chosen.

    ``groups`` is "auto" (S_g above ``threshold``), "all" or names of groups; ``grouping`` takes the place of
    ``forgetless.groups(network, head)``. What is frozen now is neither tracked nor chosen.
    """

    def __init__(
        self,
        network: nn.Module,
        groups: str | Collection[str] = "auto",
        threshold: float = 1.0,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
    ) -> None:
        self._network = network
        self.grouping = derive(network, head) if grouping is None else _partition(network, grouping)
        # Which only their module knows the meaning of: they are not chosen unless named.
        self._foreign = {"buffers"} if grouping is None else set()
        parameters = dict(network.named_parameters())
        frozen = {name for name, parameter in parameters.items() if not (parameter.requires_grad and parameter.numel())}
        # The statistics of a normalisation layer whose weights are frozen stay with them.
        for path, module in network.named_modules():
            own = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
            if is_norm(module) and own and not any(own):
                frozen |= statistics(path, module)
        # What can move, by group; a group without such a tensor is left out.
        self._live = {g: left for g, names in self.grouping.items() if (left := [n for n in names if n not in frozen])}
        self._sizes = {name: tensor.numel() for name, tensor in float_tensors(network).items()}
        self._statistics = [group for group, names in self._live.items() if not parameters.keys() & set(names)]
        if len(self._live) == len(self._statistics):
            raise ValueError(f"every parameter of {type(network).__name__} is frozen (requires_grad=False)")
        check_value("threshold", threshold, float)
        self.threshold = float(threshold)
        if not isinstance(groups, Collection):
            raise ValueError(f"groups is {groups!r}; it must be 'auto', 'all' or names of groups")
        self.fixed = groups != "auto"
        self.chosen = self._listed(groups) if self.fixed else None

    @property
    def tracked(self) -> list[str]:
        """Names of all tensors that can move."""
        return [name for names in self._live.values() for name in names]

    def names(self, chosen: Collection[str]) -> list[str]:
        """Names of the tensors of these groups."""
        return [name for group in chosen for name in self._live[group]]

    def by_group(self, by_tensor: Mapping[str, float]) -> dict[str, float]:
        return dynamics.group_changes(by_tensor, self._live, self._sizes)

    def of_weights(self, by_tensor: Mapping[str, float]) -> list[float]:
        """The changes of the tensors that are not statistics, which tell a boundary."""
        return [by_tensor[name] for g, names in self._live.items() if g not in self._statistics for name in names]

    def scores(self, by_tensor: Mapping[str, float]) -> dict[str, float]:
        """S_g from the changes between tasks; empty while there are none."""
        if not by_tensor or not any(self.of_weights(by_tensor)):
            return {}
        return dynamics.sensitivity(self.by_group(by_tensor), self._statistics)

    def choice(self, by_tensor: Mapping[str, float]) -> tuple[str, ...]:
        """The groups to finetune: those chosen already, or those these changes choose; none while nothing is known."""
        if self.chosen is not None:
            return self.chosen
        scores = self.scores(by_tensor)
        weights = [group for group in scores if group not in self._statistics]
        # Statistics that never moved are of layers that train in evaluation mode: they are not batch norm's to repair.
        still = {group for group in self._statistics if scores.get(group) == 0}
        found = tuple(g for g in dynamics.select(scores, self.threshold) if g not in still | self._foreign)
        return found or (tuple(weights) if len(weights) == 1 else ())  # S_g of a single group is 1, never above it

    def movable(self, chosen: Collection[str]) -> tuple[str, ...]:
        """Those of these groups that are not frozen by now."""
        return tuple(group for group in chosen if movable(self._network, self._live[group]))

    def profile(self, by_tensor: Mapping[str, float], comparisons: int) -> Profile:
        scores, chosen = self.scores(by_tensor), self.choice(by_tensor)
        sizes = counts(self._network, {group: tuple(self._live.get(group, ())) for group in self.grouping})
        total = sum(parameter.numel() for parameter in self._network.parameters())
        groups = (Group(name, scores.get(name), size, size / total, name in chosen) for name, size in sizes.items())
        return Profile(tuple(groups), comparisons)

    def why_not(self, by_tensor: Mapping[str, float]) -> str:
        """Why nothing is finetuned."""
        chosen = self.choice(by_tensor)
        if chosen and not self.movable(chosen):
            verb = "are" if len(chosen) > 1 else "is"
            return f"{', '.join(chosen)}, which {verb} chosen, {verb} frozen"
        scores = self.scores(by_tensor)
        if not scores:
            return STILL if by_tensor else "no shift of the data was seen, so no sensitivity is known"
        highest = max(scores, key=lambda group: scores[group])
        return f"no S_g is above the threshold {self.threshold}; the highest is {highest}, {scores[highest]:.2f}"

    def _listed(self, groups: str | Collection[str]) -> tuple[str, ...]:
        """The groups of the setting ``groups``, all of them existing and not frozen."""
        chosen = dynamics.select(dict.fromkeys(self.grouping, 0.0), groups=groups)
        frozen = [group for group in chosen if group not in self._live]
        if frozen and groups != "all":
            raise ValueError(f"group {frozen[0]!r} is frozen: all its parameters have requires_grad=False")
        return tuple(group for group in chosen if group in self._live)


def _partition(network: nn.Module, grouping: Mapping[str, Collection[str]]) -> Groups:
    """A user's groups, checked: every tensor exists and is in one group only. What is in none stays as it is."""
    if not isinstance(grouping, Mapping):
        raise ValueError(f"grouping is {grouping!r}; it must be {{group: names of tensors}}")
    known = float_tensors(network)
    owner: dict[str, str] = {}
    grouping = {group: names if isinstance(names, str) else tuple(names) for group, names in grouping.items()}
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
        check_names(network, names)
    if not owner:
        raise ValueError("grouping is empty; give {group: names of tensors}")
    return {group: tuple(names) for group, names in grouping.items()}
