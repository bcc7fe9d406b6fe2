"""Tells the value of each setting that is in effect, and where it comes from; writes them as text, TOML or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NamedTuple

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings.loading import PARTS, Settings
from corosrv.contracts.settings.model import ModelSettings
from corosrv.contracts.settings.sources import PREFIX, RawSettings, sections

DEFAULT = "default"
DERIVED = "derived"  # from other settings
FITTED = "fitted"  # to the model and the memory of this machine
_PASSWORD = re.compile(r"://[^/?#\s,]*@")
_COLUMN = 40  # characters that values in a text are padded to, at most
_MOST = 200  # characters of a value in a text
_MASK = "********"


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A setting with its value in effect; `source` says in words where that comes from."""

    name: str
    value: Any
    source: str
    is_secret: bool = False

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT


class SettingGroup(NamedTuple):
    """Settings that belong together, in their order."""

    title: str
    settings: Sequence[EffectiveSetting]


def effective_groups(raw: RawSettings, settings: Settings) -> list[SettingGroup]:
    """Returns all settings, one group for each section of a part. `settings` is what assemble() makes of `raw`."""
    parts = {type(part): part for part in vars(settings).values()}
    if not raw.values(ModelSettings).get("model"):  # else what all listed models share, as it was set
        parts |= {type(model): model for model in settings.models}
    return [
        SettingGroup(section.title, list(_effective(part, section.fields, parts.get(part), raw)))
        for part in PARTS
        for section in sections(part)
    ]


def own_groups(
    raw: RawSettings, settings: Settings, fit: Callable[[ModelSettings], ModelSettings] = lambda model: model
) -> list[SettingGroup]:
    """Returns what each model has for itself, one group for each such model.

    That is what a list of models has behind question marks, and what `fit` makes of settings that are left open.
    """
    shared = {field.name: field.default for field in fields(ModelSettings)} | raw.values(ModelSettings)
    groups = [
        SettingGroup(f"model {model.names[0]}", list(_own(model, fit(model), shared))) for model in settings.models
    ]
    return [group for group in groups if group.settings]


def _own(model: ModelSettings, fitted: ModelSettings, shared: Mapping[str, Any]) -> Iterator[EffectiveSetting]:
    for field in fields(ModelSettings):
        value, in_effect = getattr(model, field.name), getattr(fitted, field.name)
        if field.name in ("model", "model_alias") or in_effect == shared[field.name]:
            continue
        yield EffectiveSetting(field.name, in_effect, FITTED if in_effect != value else f"its entry in {PREFIX}MODEL")


def without_defaults(groups: Iterable[SettingGroup]) -> list[SettingGroup]:
    """Returns the groups with what some source has set, or the server has derived."""
    kept = [
        SettingGroup(title, [setting for setting in members if not setting.is_default]) for title, members in groups
    ]
    return [group for group in kept if group.settings]


def _effective(part: type, section: Iterable[Field[Any]], in_use: Any, raw: RawSettings) -> Iterator[EffectiveSetting]:
    """Yields settings of a part; `in_use` is the part in effect, None where the server has none of its kind."""
    sourced = raw.sourced_values(part)
    for field in section:
        value, source = sourced.get(field.name, (field.default, DEFAULT))
        in_effect = value if in_use is None else getattr(in_use, field.name)
        yield EffectiveSetting(
            field.name, in_effect, source if in_effect == value else DERIVED, _is_secret(field, in_effect)
        )


def _is_secret(field: Field[Any], value: Any) -> bool:
    return bool(value) and bool(field.metadata["is_secret"] or _PASSWORD.search(str(value)))


def to_text(groups: Iterable[SettingGroup]) -> str:
    """Writes a table of values and their sources, in each group those that are no defaults first. Shows no secret."""
    rows = [
        (f"  {setting.name}", _short(setting), _printable(setting.source), group.title)
        for group in groups
        for setting in sorted(group.settings, key=lambda setting: setting.is_default)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    widths[1] = min(widths[1], _COLUMN)
    lines = []
    title = ""
    for name, value, source, row_title in rows:
        if row_title != title:
            title = row_title
            lines.append(title)
        lines.append(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}")
    return "\n".join(lines)


def _short(setting: EffectiveSetting) -> str:
    if setting.is_secret:
        return _MASK
    text = "none" if setting.value is None else _printable(_literal(setting.value))
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def to_toml(groups: Iterable[SettingGroup]) -> str:
    """Writes a settings file with the sources as comments; secrets are named there, and have no values."""
    lines = []
    for group in groups:
        lines.append(f"# {group.title}")
        for setting in group.settings:
            source = _printable(setting.source)
            if setting.is_secret or setting.value is None:
                lines.append(f"# {setting.name}: {'secret' if setting.is_secret else 'none'}, {source}")
            else:
                lines.append(f"{setting.name} = {_literal(_storable(setting))}  # {source}")
    return "\n".join(lines)


def to_json(groups: Iterable[SettingGroup]) -> str:
    """Writes a settings file as a JSON object, without secrets and what has no value."""
    values = {
        setting.name: _storable(setting)
        for group in groups
        for setting in group.settings
        if not setting.is_secret and setting.value is not None
    }
    return json.dumps(values, indent=2)


def _literal(value: Any) -> str:
    """Writes a value as TOML has it, whose strings are those of JSON but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _storable(setting: EffectiveSetting) -> Any:
    """Returns the value. Raises SettingsError where no file can have it: bytes of a path that are no UTF-8."""
    if isinstance(setting.value, str):
        try:
            setting.value.encode()
        except UnicodeEncodeError:
            words = "holds bytes that are no UTF-8, so that no settings file can have it"
            raise SettingsError(f"{PREFIX}{setting.name.upper()} {words}") from None
    return setting.value


def _printable(text: str) -> str:
    """Returns the text in one line that a terminal shows as it is."""
    return "".join(character if character.isprintable() else "?" for character in text)
