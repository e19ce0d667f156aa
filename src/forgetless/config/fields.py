"""Declare a setting once: its default, its help text and its valid range.

Settings are fields of frozen dataclasses. Everything else is generated from the fields: range checks, command-line
options, plan files and records.

    @dataclass(frozen=True, kw_only=True)
    class Training(Checked):
        lr: float = setting(0.1, "Learning rate.", above=0)

    Training(lr=-1)      # ValueError: lr is -1; it must be a finite number above 0

A value that is not a field is checked by the same rules: ``check_value("window", window, int, least=1)``. Imports no
torch.
"""

import dataclasses
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

SEED: Mapping[str, Any] = types.MappingProxyType({  # torch seeds have 64 bits, and a run adds small numbers to its seed
    "least": 1 - 2**62, "most": 2**62 - 1, "expects": "a whole number between -2^62 and 2^62",
})  # fmt: skip


def setting(default: Any, help: str, **rules: Any) -> Any:
    """Return a dataclass field that declares a setting.

    Args:
        default: The value where none is given.
        help: One sentence for ``--help`` and the documentation.
        rules: Further fields of ``Setting``: the range, the option's name, and whether records hold the value.
    """
    Setting("", Any, default, help, **rules)  # a rule that does not exist is an error here
    return dataclasses.field(default=default, metadata={"setting": {"help": help, **rules}})


@dataclass(frozen=True)
class Setting:
    """A declared setting, as ``settings_of`` reads it from a dataclass field."""

    name: str
    kind: Any
    default: Any
    help: str = ""
    above: float | None = None  # every number must be greater than this
    least: float | None = None  # every number must be at least this
    most: float | None = None  # no number may be greater than this
    choices: tuple[str, ...] = ()  # the words that are valid
    pattern: str | None = None  # a regular expression that a word must match
    expects: str | None = None  # what would be right, in words; default: derived from the type and the range
    option: str = ""  # the name on the command line, in plans and in records; default: the name of the field
    # Whether records hold the value: "always", "never", or "changed" from the default. A new setting keeps "changed",
    # so that the ids of older records stay the same.
    recorded: str = "changed"

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types a value may have, without ``None``."""
        union = get_origin(self.kind) in (Union, types.UnionType)
        members = get_args(self.kind) if union else (self.kind,)
        return tuple(member for member in members if member is not type(None))

    @property
    def optional(self) -> bool:
        """Whether ``None`` is a valid value."""
        return type(None) in get_args(self.kind)

    @property
    def takes_list(self) -> bool:
        """Whether a value may be a list."""
        return any(get_origin(kind) is tuple for kind in self.kinds)

    def check(self, value: Any, name: str | None = None) -> Any:
        """Return ``value`` with Python's own numbers and lists as tuples, or raise ``ValueError`` that has the name."""
        if value is None and self.optional:
            return None
        for kind in self.kinds:
            converted = _convert(value, kind)
            if converted is not None and self._is_valid(converted):
                return converted
        raise ValueError(f"{name or self.name} is {value!r}; it must be {self.wanted}")

    def parse(self, text: str) -> Any:
        """Return the checked value of ``text``, a word of the command line. Commas separate the parts of a list."""
        lists = [kind for kind in self.kinds if get_origin(kind) is tuple]
        for kind in lists if lists and "," in text else self.kinds:
            if (value := _parse(text, kind)) is not None and _convert(value, kind) is not None:
                return self.check(value, self.option)
        raise ValueError(f"{self.option} is {text!r}; it must be {self.wanted}{' with commas' * self.takes_list}")

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.expects is not None:
            return self.expects
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = _WORDS.get(self.kinds[0], "a list of names")
        if self.above is not None:
            words += f" above {self.above:g}"
        if self.least is not None:
            words += f" of {self.least:g} or more"
        if self.most is not None:
            words += f" and {self.most:g} or less"
        return words

    def _is_valid(self, value: Any) -> bool:
        """Return whether a converted value is within its range, or is a valid word."""
        if isinstance(value, str):
            matches = self.pattern is None or re.fullmatch(self.pattern, value)
            return bool(matches) and (not self.choices or value in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
        )


_WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a word"}


def check_value(name: str, value: Any, kind: Any, **rules: Any) -> Any:
    """Return a value that is not a field in its type, or raise ``ValueError``. The rules are those of ``setting``."""
    return Setting(name, kind, None, **rules).check(value)


@cache
def settings_of(kind: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by field name; empty for a class that is not a dataclass."""
    if not dataclasses.is_dataclass(kind):
        return types.MappingProxyType({})
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError):  # a user's class may have annotations that cannot be resolved
        hints = {}
    declared = {}
    for field in dataclasses.fields(kind):
        if field.init:
            rules = {"option": field.name, **field.metadata.get("setting", {})}
            declared[field.name] = Setting(field.name, hints.get(field.name, Any), field.default, **rules)
    return types.MappingProxyType(declared)


class Checked:
    """A base for frozen dataclasses of settings that converts and checks every value on construction."""

    def __post_init__(self) -> None:
        kind: type = type(self)
        for name, declared in settings_of(kind).items():
            object.__setattr__(self, name, declared.check(getattr(self, name)))


def _convert(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind``, with numpy's numbers as Python's; ``None`` if it has another type."""
    if kind is bool or isinstance(value, bool):
        return value if isinstance(value, bool) and kind in (bool, Any) else None
    if kind is int:
        return int(value) if isinstance(value, Integral) else None
    if kind is float:
        return float(value) if isinstance(value, Real) else None
    if kind is str:
        return value if isinstance(value, str) and value else None
    if get_origin(kind) is tuple:
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, list | tuple):
            return None
        converted = tuple(_convert(part, get_args(kind)[0]) for part in values)
        return None if None in converted else converted
    return value if not isinstance(kind, type) or isinstance(value, kind) else None


def _parse(text: str, kind: Any) -> Any:
    """Return ``text`` as ``kind``; ``None`` if it cannot be read as one."""
    if get_origin(kind) is tuple:
        parts = [_parse(part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip()]
        return parts if parts and None not in parts else None
    if kind is bool:
        return {"true": True, "false": False}.get(text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return None
    return text
