"""The settings of a run, and the id that is their hash. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from forgetless.config.catalogue import TABLES, check_name, load, nearest
from forgetless.config.fields import Setting, check_value, setting, settings_of
from forgetless.experiments.presets import preset, recipe
from forgetless.repair.settings import BUDGET, Finetune
from forgetless.training.settings import TrainSettings

REPAIRS = ("none", "fpf", "k-fpf")
SCHEDULE = ("every", "steps", "ft_lr", "threshold")  # the settings that a budget replaces


@final
@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """Everything that decides what a run does. Two runs with the same settings are the same run.

    Records, plans and the command line hold the settings flat. There, ``repair`` is the kind of repair, and the fields
    of ``finetune`` have their option names, such as ``kd`` and ``ft_lr``.
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
        return "none" if self.finetune is None else "fpf" if self.finetune.at_end_only else "k-fpf"

    @property
    def id(self) -> str:
        """Return twelve hexadecimal digits of the hash of all settings."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def training_id(self) -> str:
        """Return an id that is the same for runs that share one training.

        FPF follows the training, so runs that differ only in FPF share it. Runs with a user's method or network share
        nothing, because such a part may hold more than its state.
        """
        if self.repair == "k-fpf" or self.anytime or self.user_parts.keys() & {"method", "network"}:
            return self.id
        distils = self.finetune is not None and self.finetune.distill > 0
        return replace(self, finetune=Finetune(distill=float(distils))).id

    @property
    def user_parts(self) -> dict[str, str]:
        """Return the paths of the stream, method and network that are the user's, by kind."""
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
        """Return the settings as flat, plain data, without the newer ones that have their default."""
        values = {name: getattr(self, name) for name in _run_level()}
        for name, declared in _repair_level().items():
            # Without a repair, a setting that is off by default is off, and any other has no value.
            off = None if declared.default else declared.default
            values[name] = off if self.finetune is None else getattr(self.finetune, declared.name)
        recorded = {
            name: values[name]
            for name, declared in run_settings().items()
            if declared.recorded == "always" or values[name] != declared.default
        }
        if self.finetune is not None and self.finetune.budget is not None:
            recorded["ft_pad"] = self.finetune.pad  # whose default is another within a budget
        flat = {"repair": self.repair, "options": dict(self.options), **recorded}
        plain: dict[str, Any] = json.loads(json.dumps(flat))
        return plain

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Settings:
        """Return the settings of flat, plain data; raise ``ValueError`` for an unknown name or an invalid value."""
        known = [*run_settings(), "repair", "options"]
        for name in values:
            if name not in known:
                raise ValueError(f"no setting named {name!r}{nearest(name, known)}")
        repair = check_value("repair", values.get("repair", "none"), str, choices=REPAIRS)
        finetune = None
        if repair != "none":
            given = {
                declared.name: declared.check(values[name], name)
                for name, declared in _repair_level().items()
                if values.get(name) is not None
            }
            if "budget" in given:
                finetune = Finetune.within(**{"pad": 0} | given, spread=repair == "k-fpf")  # 0: records of 0.21
            else:
                finetune = Finetune(**given) if repair == "fpf" else Finetune.k_fpf(**given)
        run_level = {name: values[name] for name in _run_level() if name in values}
        return Settings(**run_level, finetune=finetune, options=dict(values.get("options", {})))


def run_settings() -> dict[str, Setting]:
    """Return every setting of a run by its flat name, except ``repair`` and the method's own settings."""
    return _run_level() | _repair_level()


def _run_level() -> dict[str, Setting]:
    """Return the settings that are fields of ``Settings`` itself."""
    declared = settings_of(Settings)
    return {name: one for name, one in declared.items() if one.recorded != "never" and name != "options"}


def _repair_level() -> dict[str, Setting]:
    """Return the settings of a repair by their flat names."""
    return {one.option: one for one in settings_of(Finetune).values() if one.recorded != "never"}


def resolve(stream: str, method: str | None, given: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
    """Return complete settings, and by name where each value comes from: given, or one of the presets.

    The stream and the method are names of the catalogue, or ``package.module:object``. Without a method the run is the
    recommended recipe. ``given`` has values by flat name. A name that is not a setting of a run is one of the method's
    own.
    """
    check_name("stream", stream)
    recommended = recipe(stream, given.get("network")) if method is None else {}
    method = recommended["method"][0] if method is None else method
    check_name("method", method)
    for name in ("stream", "method", "options"):
        if name in given:
            raise ValueError(f"{name} is {given[name]!r}, but it is not an option: stream and method come first")
    if "network" in given:
        check_name("network", check_value("network", given["network"], str))
    declared = run_settings()
    given = {name: declared[name].check(value, name) if name in declared else value for name, value in given.items()}
    usual_repair, _ = recommended.get("repair", ("none", ""))
    repair = check_value("repair", given.get("repair", usual_repair), str, choices=REPAIRS)
    _check_repair(given, repair)
    buffer = given.get("buffer", preset(stream, method, repair, 500).get("buffer", (500, ""))[0])
    presets = preset(stream, method, repair, buffer, distils=bool(given.get("kd")), network=given.get("network"))
    sourced = (recommended or presets) | {name: (value, "given") for name, value in given.items()}
    if str(given.get("device", "cpu")).startswith("cuda") and "precision" not in given:
        sourced["precision"] = "bf16", "default on a GPU"
    if repair != "none" and _tunes_itself(stream, given, recommended=bool(recommended)):
        default = "recommended recipe" if recommended else f"default of {repair}"
        sourced = {name: pair for name, pair in sourced.items() if name not in SCHEDULE}
        sourced.setdefault("budget", (BUDGET, default))
        sourced["ft_pad"] = (given["ft_pad"], "given") if "ft_pad" in given else ("auto", default)
    values = {name: value for name, (value, _) in sourced.items() if name != "method"}
    options = {name: values.pop(name) for name in list(values) if name not in declared and name != "repair"}
    if options:
        options = check_options(method, options)
    settings = Settings.from_dict({**values, "stream": stream, "method": method, "options": options})
    return settings, {name: source for name, (_, source) in sourced.items()}


def _tunes_itself(stream: str, given: Mapping[str, Any], *, recommended: bool) -> bool:
    """Return whether repairs tune themselves: with a budget, and by default if no part of a schedule is given.

    The default is for the recommended recipe and for a user's stream. The benchmark's streams have the paper's
    schedules, with settings that were searched for each stream.
    """
    if "budget" in given:
        return given["budget"] is not None
    return (recommended or stream not in TABLES["stream"]) and not any(name in given for name in SCHEDULE)


def check_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's own settings in their types; raise ``ValueError`` for an unknown or invalid one."""
    declared, shared = settings_of(load("method", method)), run_settings()
    if clash := [name for name in declared if name in shared]:
        raise ValueError(f"{method} has a setting {clash[0]!r}, as every run has: give it another name")
    for name in options:
        if name not in declared:
            listed = f"its own settings: {', '.join(declared)}" if declared else "it has no settings of its own"
            raise ValueError(f"{method} has no setting {name!r}{nearest(name, [*declared, *shared])} ({listed})")
    return {name: declared[name].check(value) for name, value in options.items()}


def _check_repair(given: Mapping[str, Any], repair: str) -> None:
    """Raise ``ValueError`` for settings of a repair that contradict the kind of repair."""
    if repair == "none" and (stray := [name for name in _repair_level() if name in given]):
        raise ValueError(f"{stray[0]} is a setting of FPF: it goes with --fpf or --k-fpf (in a plan: repair)")
    if repair == "fpf" and "every" in given:
        raise ValueError("every is a setting of k-FPF: it goes with --k-fpf")
    scheduled = [name for name in SCHEDULE if given.get(name) is not None]
    if scheduled and given.get("budget") is not None:
        name, budget = scheduled[0], given["budget"]
        raise ValueError(f"{name} is {given[name]}, but budget is {budget}: a budget replaces the schedule; give one")
    if given.get("groups", "auto") != "auto" and "threshold" in given:
        raise ValueError(f"threshold is {given['threshold']}, but the groups are named: it goes with groups auto")
