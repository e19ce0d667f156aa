"""The settings of a run: frozen, complete, hashed to its id. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from forgetless.config.catalogue import (
    METHOD_SETTINGS,
    METHODS,
    POLICIES,
    PRECISIONS,
    TABLES,
    check_name,
    check_settings,
    nearest,
)
from forgetless.config.checks import check_number, check_one_of, check_seed, check_whole
from forgetless.experiments.presets import preset

REPAIRS = ("none", "fpf", "k-fpf")


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run does. Two runs with the same settings are the same run."""

    stream: str
    method: str
    network: str = "mlp"
    buffer: int = 500
    policy: str = "reservoir"
    epochs: int = 1
    batch: int = 32
    replay: int = 32
    lr: float = 0.1
    weight_decay: float = 0.0
    repair: str = "none"
    every: int | None = None
    steps: int | None = None
    ft_lr: float | None = None
    ft_pad: int = 0
    kd: float = 0.0
    groups: str | tuple[str, ...] | None = None
    threshold: float | None = None
    freeze: tuple[str, ...] = ()
    order: int | tuple[int, ...] | None = None
    validation: bool = False
    anytime: bool = False
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the hash of all settings."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def training(self) -> str:
        """The same for runs that differ only in FPF's finetuning, or in that there is none: it follows the training.

        Not with a method or network of the user's, which may keep more than a state holds.
        """
        if self.repair == "k-fpf" or self.anytime or self.own_parts.keys() & {"method", "network"}:
            return self.id
        alike = replace(self, repair="fpf", every=None, steps=None, ft_lr=None, groups=None, threshold=None)
        return replace(alike, ft_pad=0, kd=float(self.kd > 0)).id

    @property
    def own_parts(self) -> dict[str, str]:
        """Those of stream, method and network that are the user's, by kind."""
        parts = {"stream": self.stream, "method": self.method, "network": self.network}
        return {kind: name for kind, name in parts.items() if name not in TABLES[kind]}

    @property
    def label(self) -> str:
        """What people call the run: er, fpf+er, k-fpf-ce, k-fpf-kd."""
        if self.repair == "none":
            return self.method
        if self.repair == "fpf":
            return f"fpf{'-all' if self.groups == 'all' else ''}+{self.method}"
        kind = f"k-fpf{'-all' if self.groups == 'all' else ''}-{'kd' if self.kd else 'ce'}"
        return kind if self.method == "sgd" else f"{kind}+{self.method}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data. What came later than the first records is left out at its default, so that their ids stay."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {name: value for name, value in made.items() if _LATER.get(name, ...) != value}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Settings:
        known = {f.name for f in fields(Settings)}
        for name in values:
            if name not in known:
                raise ValueError(f"no setting named {name!r}{nearest(name, known)}")
        return Settings(**{name: _typed(name, value) for name, value in values.items()})


_LATER = {"precision": "fp32", "anytime": False, "ft_pad": 0, "policy": "reservoir"}


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are(value: Any, fit: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(fit, value))


def _list(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


# Of each setting: what a value must be, how it is kept, and the same in words.
Kind = tuple[Callable[[Any], bool], Callable[[Any], Any], str]
WHOLE: Kind = (_is_whole, int, "a whole number")
NUMBER: Kind = (_is_number, float, "a number")
SWITCH: Kind = (lambda value: isinstance(value, bool), bool, "true or false")
_WORD: Kind = (_is_word, str, "a word")
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("buffer", "epochs", "batch", "replay", "every", "steps", "ft_pad", "seed"), WHOLE),
    **dict.fromkeys(("lr", "weight_decay", "ft_lr", "kd", "threshold"), NUMBER),
    **dict.fromkeys(("stream", "method", "network", "repair", "policy", "device", "precision"), _WORD),
    **dict.fromkeys(("validation", "anytime"), SWITCH),
    "options": (lambda value: isinstance(value, Mapping), dict, "the method's own settings by name"),
    "order": (
        lambda value: _is_whole(value) or _are(value, _is_whole),
        lambda value: int(value) if _is_whole(value) else tuple(map(int, value)),
        "a seed, or a list of classes",
    ),
    "groups": (
        lambda value: _is_word(value) or (bool(value) and _are(value, _is_word)),
        lambda value: value if value in ("auto", "all") else _list(value),
        "auto, all, or groups",
    ),
    "freeze": (lambda value: _is_word(value) or _are(value, _is_word), _list, "groups"),
}
# Own settings of the methods here that are numbers with fractions; known without importing them.
FLOATS = ("alpha", "beta", "penalty", "gamma", "c", "xi", "s_max", "keep", "lr_high", "lr_low", "cutmix")
_OPEN = ("every", "steps", "ft_lr", "groups", "threshold", "order")  # may be None


def _typed(name: str, value: Any) -> Any:
    """A setting's value in its type, so that 1 and 1.0 have one id; an error if it is of another.

    A method's own settings are taken as they are given, but for the numbers of those here; ``build`` checks them.
    """
    if value is None and name in _OPEN:
        return None
    fits, keep, wanted = _KINDS[name]
    if not fits(value):
        raise ValueError(f"{name} is {value!r}; it must be {wanted}")
    return keep(value)


def resolve(stream: str, method: str, given: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
    """Complete settings from those given and the presets, and where each came from.

    A given name that is no setting of a run is one of the method's own; ``build_method`` checks those of users'.
    """
    check_name("stream", stream)
    check_name("method", method)
    own = {f.name for f in fields(Settings)} - {"options"}
    for name in ("stream", "method", "options"):
        if name in given:
            raise ValueError(f"{name} is {given[name]!r}, but no option: stream and method are the first two words")
    given = {name: _typed(name, value) if name in own else value for name, value in given.items()}
    for name in FLOATS if method in METHODS else ():
        if _is_whole(given.get(name)):
            given[name] = float(given[name])
    repair = given.get("repair", "none")
    check_one_of("repair", repair, REPAIRS)
    if "network" in given:
        check_name("network", given["network"])
    buffer = given.get("buffer", preset(stream, method, repair, 500).get("buffer", (500, ""))[0])
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    sources: dict[str, str] = {}
    distils = bool(given.get("kd"))
    network = given.get("network")
    for name, (value, source) in preset(stream, method, repair, buffer, distils=distils, network=network).items():
        (values if name in own else options)[name] = value
        sources[name] = source
    for name, value in given.items():
        (values if name in own else options)[name] = value
        sources[name] = "given"
    if method in METHODS:
        check_settings(method, options, METHOD_SETTINGS[method], sorted(own))
    if repair == "none":
        for name in ("every", "steps", "ft_lr", "ft_pad", "kd", "groups", "threshold"):
            if name in given:
                raise ValueError(f"{name} is a setting of FPF: it goes with --fpf or --k-fpf (in a plan: repair)")
    else:
        values.setdefault("groups", "auto")
        if repair == "fpf" and "every" in given:
            raise ValueError("every is a setting of k-FPF: it goes with --k-fpf")
        if values["groups"] != "auto" and "threshold" in given:
            raise ValueError(f"threshold is {given['threshold']}, but the groups are named: it goes with groups auto")
    values.setdefault("replay", values.get("batch", Settings.batch))
    if str(given.get("device", "cpu")).startswith("cuda") and "precision" not in given:
        values["precision"], sources["precision"] = "bf16", "default on a GPU"
    check_one_of("precision", values.get("precision", Settings.precision), PRECISIONS)
    check_one_of("policy", values.get("policy", Settings.policy), POLICIES)
    _check_ranges(values)
    values.update(stream=stream, method=method, options=options)
    return Settings.from_dict(values), sources


def _check_ranges(values: Mapping[str, Any]) -> None:
    """An error for what no run could begin with, so that a plan is refused before any of its runs."""
    whole, above = ("epochs", "batch", "replay", "every", "steps"), ("lr", "ft_lr")
    for name, value in values.items():
        if name in whole and value is not None:
            check_whole(name, value)
        elif name in above and value is not None:
            check_number(name, value, above=0)
    for name in ("weight_decay", "kd"):
        check_number(name, values.get(name, 0.0), least=0)
    check_number("threshold", values.get("threshold") or 0.0)
    for name in ("buffer", "ft_pad"):
        check_whole(name, values.get(name, 0), least=0)
    check_seed(values.get("seed", 0))
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device := str(values.get("device", "cpu"))):
        raise ValueError(f"device is {device!r}; it must be cpu, cuda, cuda:1, …")
