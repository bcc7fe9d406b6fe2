"""Where settings come from. Sources in order: defaults, TOML file, environment `COROSRV_*`, command line.

A part is a frozen dataclass whose fields are made by setting(); all parts share one file and one environment.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from corosrv.errors import SettingsError
from corosrv.settings.checks import Check

PREFIX = "COROSRV_"

_TYPES: dict[str, type] = {"str": str, "int": int, "int | None": int, "float": float, "bool": bool}


def setting(
    default: Any,
    help: str,
    *,
    check: Check | None = None,
    also: str = "",
    is_secret: bool = False,
) -> Any:
    """A field with its help text, which the command line shows, and what it may be.

    `also`: a variable of another server's, which counts where no other source has the setting; `is_secret`: no error
    may show its value.
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help, "check": check, "also": also, "is_secret": is_secret},
    )


def check(part: Any) -> None:
    """Raises SettingsError for the first setting of a part that its check refuses."""
    for field in fields(part):
        check: Check | None = field.metadata["check"]
        value = getattr(part, field.name)
        if check is not None and not check.is_good(value):
            raise refused(field.name, check.words, "this value" if field.metadata["is_secret"] else repr(value))


def refused(name: str, words: str, shown: str) -> SettingsError:
    return SettingsError(f"{PREFIX}{name.upper()} {words}, not {shown}")


def words(listed: str) -> tuple[str, ...]:
    """The members of a comma-separated list, without the empty ones."""
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def kinds(part: type) -> dict[str, type]:
    """The type of each setting of a part, by name."""
    return {field.name: _TYPES[str(field.type)] for field in fields(part)}


def names(parts: Iterable[type]) -> frozenset[str]:
    return frozenset(name for part in parts for name in kinds(part))


@dataclass(frozen=True, slots=True)
class RawSettings:
    """The settings that the sources have, each as it came."""

    overrides: Mapping[str, Any]
    environ: Mapping[str, str]
    path: Path | None
    in_file: Mapping[str, Any]

    def of(self, part: type) -> dict[str, Any]:
        """The settings of a part that somebody named. Raises SettingsError, which names the variable and the source."""
        return self._from_others(part) | self.own(part)

    def own(self, part: type) -> dict[str, Any]:
        """The same without what other servers' variables say."""
        named = {name: self.overrides[name] for name in kinds(part) if self.overrides.get(name) is not None}
        return self._from_file(part) | self._from_environment(part) | named

    def _from_others(self, part: type) -> dict[str, Any]:
        variables = {field.name: field.metadata["also"] for field in fields(part)}
        return {
            name: parse(variable, kinds(part)[name], self.environ[variable])
            for name, variable in variables.items()
            if variable and self.environ.get(variable)
        }

    def _from_file(self, part: type) -> dict[str, Any]:
        values = {}
        for name, kind in kinds(part).items():
            if name not in self.in_file:
                continue
            value = self.in_file[name]
            accepted = (int, float) if kind is float else kind
            is_right = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
            if not is_right:
                raise SettingsError(
                    f"the settings file {self.path}: {name} must be of type {kind.__name__}, not {value!r}"
                )
            values[name] = kind(value)
        return values

    def _from_environment(self, part: type) -> dict[str, Any]:
        values = {}
        for name, kind in kinds(part).items():
            variable = PREFIX + name.upper()
            if (text := self.environ.get(variable, "")) != "":
                values[name] = parse(variable, kind, text)
        return values


def read(
    overrides: Mapping[str, Any] | None, environ: Mapping[str, str] | None, file: Path | None, parts: Iterable[type]
) -> RawSettings:
    """Looks at all sources. An override of None says nothing; the file may also be named by `COROSRV_CONFIG`, and knows
    no settings but those of `parts`. Raises SettingsError."""
    environ = os.environ if environ is None else environ
    path = file or (Path(environ[PREFIX + "CONFIG"]) if environ.get(PREFIX + "CONFIG") else None)
    return RawSettings(overrides or {}, environ, path, _parsed(path, names(parts)) if path else {})


def parse(variable: str, kind: type, text: str) -> Any:
    """The value that a text stands for. Raises SettingsError, which names the variable."""
    if kind is bool:
        if text not in ("0", "1"):
            raise SettingsError(f"{variable} must be 0 or 1, not {text!r}")
        return text == "1"
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{variable} must be of type {kind.__name__}, not {text!r}") from None


def _parsed(path: Path, known: frozenset[str]) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error}") from error
    for name in found:
        if name not in known:
            raise SettingsError(f"the settings file {path} has the unknown setting '{name}'")
    return found
