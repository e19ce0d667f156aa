"""The settings of a run: complete, checked, and hashed to its id. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from forgetless.config.catalogue import TABLES, check_name, load, nearest
from forgetless.config.fields import Setting, setting, settings_of
from forgetless.experiments.presets import preset
from forgetless.repair.settings import Finetune
from forgetless.training.settings import TrainSettings

REPAIRS = ("none", "fpf", "k-fpf")


@final
@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """Everything that decides what a run does. Two runs with the same settings are the same run.

    Records, plans and the command line hold the settings flat: those of ``finetune`` under their option names (``kd``,
    ``ft_lr``), and ``repair`` says whether there are any.
    """

    stream: str = setting(None, "Stream: a name of `forgetless list`, or package.module:object.", recorded="always")
    method: str = setting(None, "Method: a name of `forgetless list`, or package.module:object.", recorded="always")
    network: str = setting(
        "mlp", "Network: a name of `forgetless list`, or package.module:object; default: the stream's.",
        recorded="always",
    )  # fmt: skip
    order: int | tuple[int, ...] | None = setting(
        None, "Order of the classes: a seed, or class,class,…", expects="a seed, or a list of classes",
        recorded="always",
    )  # fmt: skip
    validation: bool = setting(False, "Hold out 10 % of the training images and test on them.", recorded="always")
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own settings

    @property
    def repair(self) -> str:
        """Return ``none``, ``fpf`` or ``k-fpf``."""
        return "none" if self.finetune is None else "fpf" if self.finetune.every is None else "k-fpf"

    @property
    def id(self) -> str:
        """Return twelve hexadecimal digits of the hash of all settings."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def training(self) -> str:
        """Return an id that is the same for runs that share one training.

        Those are runs that differ only in FPF, or in whether there is any: it follows the training. Runs with a method
        or network of the user's share nothing, since those may hold more than a state does.
        """
        if self.repair == "k-fpf" or self.anytime or self.own_parts.keys() & {"method", "network"}:
            return self.id
        distils = self.finetune is not None and self.finetune.distill > 0
        return replace(self, finetune=Finetune(distill=float(distils))).id

    @property
    def own_parts(self) -> dict[str, str]:
        """Return those of stream, method and network that are the user's, by kind."""
        parts = {"stream": self.stream, "method": self.method, "network": self.network}
        return {kind: name for kind, name in parts.items() if name not in TABLES[kind]}

    @property
    def label(self) -> str:
        """Return what people call the run: er, fpf+er, k-fpf-ce, k-fpf-kd."""
        if self.finetune is None:
            return self.method
        everything = "-all" if self.finetune.groups == "all" else ""
        if self.repair == "fpf":
            return f"fpf{everything}+{self.method}"
        label = f"k-fpf{everything}-{'kd' if self.finetune.distill else 'ce'}"
        return label if self.method == "sgd" else f"{label}+{self.method}"

    def changed(self, **values: Any) -> Settings:
        """Return the settings with some of them changed, by their flat names."""
        return Settings.from_dict({**self.to_dict(), **values})

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as flat, plain data. Those newer than the first records are left out at their default."""
        values = {name: getattr(self, name) for name in _RUN}
        finetune = self.finetune
        for name, declared in _REPAIR.items():
            # Without a repair, a setting that is off by default is off, and any other has no value.
            off = None if declared.default else declared.default
            values[name] = off if finetune is None else getattr(finetune, declared.name)
        flat = {"repair": self.repair, "options": dict(self.options)} | {
            name: value
            for name, value in values.items()
            if run_settings()[name].recorded == "always" or value != run_settings()[name].default
        }
        plain: dict[str, Any] = json.loads(json.dumps(flat))
        return plain

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Settings:
        """Return the settings of flat, plain data; raise ``ValueError`` for an unknown name or a value out of range."""
        known = [*run_settings(), "repair", "options"]
        for name in values:
            if name not in known:
                raise ValueError(f"no setting named {name!r}{nearest(name, known)}")
        repair = values.get("repair", "none")
        if repair not in REPAIRS:
            raise ValueError(f"repair is {repair!r}; it must be one of {', '.join(REPAIRS)}")
        given = {name: run_settings()[name].check(value, name) for name, value in values.items() if name in _RUN}
        options = values.get("options", {})
        if not isinstance(options, Mapping):
            raise ValueError(f"options is {options!r}; it must be the method's own settings by name")
        finetune = None
        if repair != "none":
            own = {d.name: values[name] for name, d in _REPAIR.items() if values.get(name) is not None}
            for name, declared in _REPAIR.items():
                if declared.name in own:
                    own[declared.name] = declared.check(own[declared.name], name)
            finetune = Finetune(**own) if repair == "fpf" else Finetune.k_fpf(**own)
        return Settings(**given, finetune=finetune, options=dict(options))


_REPAIR = {one.option: one for one in settings_of(Finetune).values() if one.recorded != "never"}
_RUN = {name: one for name, one in settings_of(Settings).items() if name != "options" and one.recorded != "never"}


def run_settings() -> dict[str, Setting]:
    """Return every setting of a run by its flat name, except ``repair`` and the method's own."""
    return _RUN | _REPAIR


def method_settings(method: str) -> dict[str, Setting]:
    """Return the own settings of a method by name. Imports the method, and with it torch."""
    return settings_of(load("method", method))


def resolve(stream: str, method: str, given: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
    """Return complete settings from those given and the presets, and where each value came from.

    A given name that is not a setting of a run is one of the method's own.
    """
    check_name("stream", stream)
    check_name("method", method)
    for name in ("stream", "method", "options"):
        if name in given:
            raise ValueError(f"{name} is {given[name]!r}, but it is not an option: stream and method come first")
    if "network" in given:
        check_name("network", given["network"])
    shared = [*run_settings(), "repair"]
    given = {name: run_settings()[name].check(v, name) if name in run_settings() else v for name, v in given.items()}
    repair = given.get("repair", "none")
    _check_repair(given, repair)
    buffer = given.get("buffer", preset(stream, method, repair, 500).get("buffer", (500, ""))[0])
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    presets = preset(stream, method, repair, buffer, distils=bool(given.get("kd")), network=given.get("network"))
    for name, (value, source) in presets.items():
        values[name], sources[name] = value, source
    for name, value in given.items():
        values[name], sources[name] = value, "given"
    if str(values.get("device", "cpu")).startswith("cuda") and "precision" not in given:
        values["precision"], sources["precision"] = "bf16", "default on a GPU"
    options = {name: values.pop(name) for name in list(values) if name not in shared}
    if options:
        options = check_options(method, options)
    return Settings.from_dict({**values, "stream": stream, "method": method, "options": options}), sources


def check_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's own settings in their types, or raise ``ValueError`` for an unknown or invalid one."""
    own = method_settings(method)
    if clash := [name for name in own if name in run_settings()]:
        raise ValueError(f"{method} has a setting {clash[0]!r}, as every run has: give it another name")
    for name in options:
        if name not in own:
            listed = f"its own settings: {', '.join(own)}" if own else "it has no settings of its own"
            raise ValueError(f"{method} has no setting {name!r}{nearest(name, [*own, *run_settings()])} ({listed})")
    return {name: own[name].check(value) for name, value in options.items()}


def _check_repair(given: Mapping[str, Any], repair: Any) -> None:
    """Raise ``ValueError`` for settings of a repair that contradict the kind of repair."""
    if repair not in REPAIRS:
        raise ValueError(f"repair is {repair!r}; it must be one of {', '.join(REPAIRS)}")
    if repair == "none" and (stray := [name for name in _REPAIR if name in given]):
        raise ValueError(f"{stray[0]} is a setting of FPF: it goes with --fpf or --k-fpf (in a plan: repair)")
    if repair == "fpf" and "every" in given:
        raise ValueError("every is a setting of k-FPF: it goes with --k-fpf")
    if given.get("groups", "auto") != "auto" and "threshold" in given:
        raise ValueError(f"threshold is {given['threshold']}, but the groups are named: it goes with groups auto")
