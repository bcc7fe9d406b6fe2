"""Reads settings from their sources. In order: defaults, TOML or JSON file, environment `COROSRV_*`, command line.

A part of the settings is a frozen dataclass whose fields are made by `setting()`, with a help text and a check: a test
of values, and words that say which are allowed. All parts share one file and one environment.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from corosrv.base.errors import SettingsError
from corosrv.base.outgoing import Destinations, WebhookSigner

MAX_INT32 = 2**31 - 1
DAY = 86_400  # seconds


class Check(NamedTuple):
    """A test of values and words for error messages, which follow the setting's name.

    A NaN, which compares false with everything, never passes.
    """

    is_good: Callable[[Any], bool]
    words: str


def between(least: float, most: float) -> Check:
    return Check(lambda value: least <= value <= most, f"must be from {least} to {most}")


def at_least(least: float) -> Check:
    return Check(lambda value: least <= value < math.inf, f"must be at least {least}")


def of_bytes(least: int) -> Check:
    """Allows numbers that the native core keeps in 64 bits."""
    return Check(lambda value: least <= value < 2**63, f"must be at least {least}, and below 2**63")


def one_of(*words: str) -> Check:
    *first, last = map(repr, words)
    return Check(lambda value: value in words, f"must be {', '.join(first)} or {last}")


def empty_or(check: Check) -> Check:
    return Check(lambda value: not value or check.is_good(value), f"{check.words}, or empty")


def none_or(check: Check) -> Check:
    return Check(lambda value: value is None or check.is_good(value), check.words)


def or_else(exception: float, check: Check) -> Check:
    """Allows what the check allows, and one value with a meaning of its own."""
    words = check.words.removeprefix("must be ")
    return Check(lambda value: value == exception or check.is_good(value), f"must be {exception} or {words}")


def _are_destinations(text: str) -> bool:
    try:
        Destinations(word.strip() for word in text.split(",") if word.strip())
    except ValueError:
        return False
    return True


def _are_webhook_secrets(text: str) -> bool:
    try:
        WebhookSigner(text)
    except ValueError:
        return False
    return True


FOLDER = Check(os.path.isdir, "must be a folder")
URL = Check(lambda text: text.startswith(("http://", "https://")), "must be an http or https URL")
HOSTS = Check(_are_destinations, "must be host names, addresses and networks, separated by commas")
WEBHOOK_SECRETS = Check(
    _are_webhook_secrets, "must be whsec_ and base64 of 24 to 64 bytes, or several such, separated by spaces or commas"
)
PLAIN = Check(lambda text: text.isascii() and text.isprintable(), "must be printable ASCII")


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


parse_toml: Callable[[str], dict[str, Any]] = tomllib.loads  # raises ValueErrors, and RecursionError

PREFIX = "COROSRV_"
UPSTREAM_KEY = PREFIX + "UPSTREAM_KEY_"  # variables that begin so hold keys of upstreams
COMMAND_LINE = "command line"

_TYPES: dict[str, type] = {
    "str": str,
    "int": int,
    "int | None": int,
    "float": float,
    "float | None": float,
    "bool": bool,
}


def setting(
    default: Any,
    help: str,
    *,
    check: Check | None = None,
    also: str = "",
    is_secret: bool = False,
    takes_flags: bool = False,
) -> Any:
    """Makes a field with its help text, which the command line shows, and a check of its values.

    `also`: a variable of another server's, which counts where no other source has the setting; `is_secret`: no error
    message shows its value; `takes_flags`: a text that files may also have as true or false, for "1" or "0".
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help, "check": check, "also": also, "is_secret": is_secret, "takes_flags": takes_flags},
    )


def check(part: Any) -> None:
    """Raises SettingsError for the first setting of a part that its check refuses."""
    for field in fields(part):
        check: Check | None = field.metadata["check"]
        value = getattr(part, field.name)
        if check is not None and not check.is_good(value):
            raise bad_value(field.name, check.words, "this value" if field.metadata["is_secret"] else repr(value))


def bad_value(name: str, words: str, value: str) -> SettingsError:
    """Makes the error for a setting whose value is not allowed; `words` say which values are."""
    return SettingsError(f"{PREFIX}{name.upper()} {words}, not {value}")


def split_words(text: str) -> tuple[str, ...]:
    """Returns the members of a comma-separated list, without the empty ones."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


class SettingSection(NamedTuple):
    """Settings that are decided together, in their order."""

    title: str
    fields: Sequence[dataclasses.Field[Any]]


def sections(part: type) -> list[SettingSection]:
    """Divides the settings of a part: first those that it declares itself, then those of each base."""
    known = {field.name: field for field in fields(part)}
    classes = [one for one in part.__mro__ if dataclasses.is_dataclass(one)]
    return [
        SettingSection(
            one.__name__.removesuffix("Settings").lower(),
            [known[name] for name in inspect.get_annotations(one) if name in known],
        )
        for one in classes
    ]


def kinds(part: type) -> dict[str, type]:
    """Returns the type of each setting of a part, by name."""
    return {field.name: _TYPES[str(field.type)] for field in fields(part)}


def names(parts: Iterable[type]) -> frozenset[str]:
    return frozenset(name for part in parts for name in kinds(part))


class SourcedValue(NamedTuple):
    """A setting's value, and words for the source that it comes from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class RawSettings:
    """The settings of all sources, as they came."""

    overrides: Mapping[str, Any]
    environ: Mapping[str, str]
    path: Path | None
    in_file: Mapping[str, Any]

    def values(self, part: type) -> dict[str, Any]:
        """Returns the settings of a part that some source has. Raises SettingsError, which names the variable."""
        return {name: sourced.value for name, sourced in self.sourced_values(part).items()}

    def sourced_values(self, part: type) -> dict[str, SourcedValue]:
        """Returns the same, each with its source."""
        return self._from_other_servers(part) | self._own(part)

    def own_values(self, part: type) -> dict[str, Any]:
        """Returns the same without those that come from other servers' variables."""
        return {name: sourced.value for name, sourced in self._own(part).items()}

    def _own(self, part: type) -> dict[str, SourcedValue]:
        overrides = {
            name: SourcedValue(self.overrides[name], COMMAND_LINE)
            for name in kinds(part)
            if self.overrides.get(name) is not None
        }
        return self._from_file(part) | self._from_environment(part) | overrides

    def _from_other_servers(self, part: type) -> dict[str, SourcedValue]:
        variables = {field.name: field.metadata["also"] for field in fields(part)}
        return {
            name: self._from_variable(variable, kinds(part)[name])
            for name, variable in variables.items()
            if variable and self.environ.get(variable)
        }

    def _from_file(self, part: type) -> dict[str, SourcedValue]:
        values = {}
        flags = {field.name for field in fields(part) if field.metadata["takes_flags"]}
        for name, kind in kinds(part).items():
            if name not in self.in_file:
                continue
            value = self.in_file[name]
            if name in flags and isinstance(value, bool):
                value = str(int(value))
            accepted = (int, float) if kind is float else kind
            is_right = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
            if not is_right:
                raise SettingsError(
                    f"the settings file {self.path}: {name} must be of type {kind.__name__}, not {value!r}"
                )
            values[name] = SourcedValue(kind(value), f"file {self.path}")
        return values

    def _from_environment(self, part: type) -> dict[str, SourcedValue]:
        variables = {name: PREFIX + name.upper() for name in kinds(part)}
        return {
            name: self._from_variable(variable, kinds(part)[name])
            for name, variable in variables.items()
            if self.environ.get(variable)
        }

    def _from_variable(self, variable: str, kind: type) -> SourcedValue:
        return SourcedValue(parse(variable, kind, self.environ[variable]), f"environment {variable}")


def read(
    overrides: Mapping[str, Any] | None, environ: Mapping[str, str] | None, file: Path | None, parts: Iterable[type]
) -> RawSettings:
    """Reads all sources; an override of None is as good as none.

    The file is `file`, otherwise the one that `COROSRV_CONFIG` names. Raises SettingsError, also for a setting in the
    file that none of `parts` has.
    """
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[PREFIX + "CONFIG"]) if environ.get(PREFIX + "CONFIG") else None)
    return RawSettings(overrides or {}, environ, path, _parse_file(path, names(parts)) if path else {})


def parse(variable: str, kind: type, text: str) -> Any:
    """Turns a variable's text into a value. Raises SettingsError, which names the variable."""
    if kind is bool:
        if text not in ("0", "1"):
            raise SettingsError(f"{variable} must be 0 or 1, not {text!r}")
        return text == "1"
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{variable} must be of type {kind.__name__}, not {text!r}") from None


def _parse_file(path: Path, names: frozenset[str]) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # those of both parsers are ValueErrors
        raise SettingsError(f"the settings file {path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"the settings file {path} must be an object of settings by name")
    for name in values:
        if name not in names:
            raise SettingsError(f"the settings file {path} has the unknown setting '{name}'")
    return values
