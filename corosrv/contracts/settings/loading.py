"""Reads all settings of one process, from every source at once, and shows those in effect.

Each is shown with its source, as text, TOML or JSON.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import model_list, sources
from corosrv.contracts.settings.fleet import ClusterSettings, PeerSettings, UpstreamSettings
from corosrv.contracts.settings.handlers import AppSettings, KserveSettings, PredictionSettings
from corosrv.contracts.settings.model import ModelSettings, models_of, queue_per_key_of
from corosrv.contracts.settings.model_list import HubSettings
from corosrv.contracts.settings.server import ImageSettings, OperatorSettings, ServerSettings
from corosrv.contracts.settings.sources import PREFIX, UPSTREAM_KEY, RawSettings, sections

# The one table of all settings: each field of these is a flag, a variable and a line of the settings file.
PARTS: tuple[type, ...] = (
    ModelSettings,
    ServerSettings,
    HubSettings,
    ImageSettings,
    PredictionSettings,
    AppSettings,
    OperatorSettings,
    KserveSettings,
    UpstreamSettings,
    ClusterSettings,
    PeerSettings,
)
_OTHER_VARIABLES = ("config", "cflags", "llama_prefix")
_SECRETS = frozenset(
    variable
    for part in PARTS
    for secret in fields(part)
    if secret.metadata["is_secret"]
    for variable in (PREFIX + secret.name.upper(), secret.metadata["also"])
) | {PREFIX + "MGMT_TOKEN_FILE"}
_KEY_OPTION = re.compile(r"[?&]api_key_env=(\w+)")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one process, by part.

    A server has models, a predictor, an application, upstreams, peers, or several of them.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    models: tuple[ModelSettings, ...] = ()  # the first is loaded at start
    predictor: PredictionSettings | None = None
    app: AppSettings | None = None
    operator: OperatorSettings = field(default_factory=OperatorSettings)
    kserve: KserveSettings = field(default_factory=KserveSettings)
    upstream: UpstreamSettings | None = None
    cluster: ClusterSettings | None = None  # None: this server shares nothing with others
    peer: PeerSettings | None = None
    queue_per_key: int = ModelSettings.queue_per_key  # calls of handlers, and to upstreams, of one API key; 0: no limit
    processes: int = 1  # of corosrv serve; one where an application is served, whose workers are processes


def load(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Reads the settings from file (also `COROSRV_CONFIG`), environment and `overrides`, the later ones winning.

    Where no model is named it is the packaged one, unless a predictor, an application or upstreams are to be served, or
    peers answer. With peers an unknown model is for them, and no name of a single model served here.
    Raises SettingsError, which names the variable and the source.
    """
    return assemble(sources.read(overrides, environ, file, PARTS))


def assemble(raw: sources.RawSettings) -> Settings:
    """Makes the settings of what all sources have, as load() does."""
    predictor = _predictor(raw)
    values = raw.values(ModelSettings)
    app = AppSettings(**raw.values(AppSettings))
    upstream = UpstreamSettings(**raw.values(UpstreamSettings))
    cluster = ClusterSettings(**raw.values(ClusterSettings))
    peer = PeerSettings(**raw.values(PeerSettings))
    server = ServerSettings(**raw.values(ServerSettings))
    operator = OperatorSettings(**raw.values(OperatorSettings))
    if upstream.router_paths and not operator.mgmt_token_file:
        words = "opens the management of upstreams at the server's own port, and needs a token for that"
        raise SettingsError(f"{PREFIX}ROUTER_PATHS {words}: set {PREFIX}MGMT_TOKEN_FILE")
    if peer.peer_url and not cluster.redis_url:
        raise SettingsError(
            f"{PREFIX}PEER_URL is for servers that find each other through {PREFIX}REDIS_URL: set that, too"
        )
    is_elsewhere = upstream.is_wanted or peer.may_have_peers
    if not values.get("model") and predictor is None and not app.is_wanted and not is_elsewhere:
        values["model"] = model_list.packaged_model()
        if not values.get("model_alias"):
            values["model_alias"] = f"{model_list.stem(values['model'])},{model_list.PACKAGED}"
    return Settings(
        server=replace(server, strict_model=True) if peer.may_have_peers else server,
        hub=HubSettings(**raw.values(HubSettings)),
        images=ImageSettings(**raw.values(ImageSettings)),
        models=models_of(values),
        predictor=predictor,
        app=app if app.is_wanted else None,
        operator=operator,
        kserve=KserveSettings(**raw.values(KserveSettings)),
        upstream=upstream if upstream.is_wanted else None,
        cluster=cluster if cluster.redis_url else None,
        peer=peer if peer.is_wanted else None,
        queue_per_key=queue_per_key_of(values),
        processes=1 if app.is_wanted else app.workers or 1,
    )


def load_hub(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> HubSettings:
    """Reads the hub's settings alone, as load() does."""
    return HubSettings(**sources.read(overrides, environ, file, PARTS).values(HubSettings))


def _predictor(raw: sources.RawSettings) -> PredictionSettings | None:
    """Makes the predictor's settings; `slots` are among them where no model is to be served."""
    values, model_values = raw.values(PredictionSettings), raw.values(ModelSettings)
    if not values.get("predictor"):
        return None
    is_alone = not model_values.get("model")
    if is_alone and "slots" in model_values and "predictor_slots" not in raw.own_values(PredictionSettings):
        values["predictor_slots"] = model_values["slots"]
    return PredictionSettings(**values)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Lists variables that look like settings and are none: misspelt, or of another version."""
    known = _variables()
    return sorted(
        name for name in environ if name.startswith(PREFIX) and name not in known and not name.startswith(UPSTREAM_KEY)
    )


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables of a process that a server starts: all but those with the server's keys and passwords.

    Such a process runs other people's code, or reads what clients send. The user's own variables stay (HF_TOKEN), as
    predictors and applications may need them.
    """
    environ = os.environ if environ is None else environ
    secrets = _SECRETS | _upstream_keys(environ.get(PREFIX + "UPSTREAM", ""), environ.get(PREFIX + "CONFIG", ""))
    return {name: value for name, value in environ.items() if name not in secrets and not name.startswith(UPSTREAM_KEY)}


@cache
def _upstream_keys(upstream: str, config: str) -> frozenset[str]:
    """Returns the variables with the keys of the upstreams that these sources name. Reads the file once."""
    environ = {PREFIX + "UPSTREAM": upstream, PREFIX + "CONFIG": config}
    values = sources.read(None, environ, None, PARTS).values(UpstreamSettings)
    return frozenset(_KEY_OPTION.findall(values.get("upstream", "")))


def with_nearest(unknown: str) -> str:
    """Returns the name of an unknown variable with the setting that may be meant, if one is spelt nearly so."""
    nearest = difflib.get_close_matches(unknown, sorted(_variables()), n=1, cutoff=0.8)
    return f"{unknown} (did you mean {nearest[0]}?)" if nearest else unknown


def _variables() -> set[str]:
    return {PREFIX + name.upper() for name in (*sources.names(PARTS), *_OTHER_VARIABLES)}


DEFAULT = "default"
DERIVED = "derived"  # from other settings
FITTED = "fitted"  # to the model and the memory of this machine
_PASSWORD = re.compile(r"://[^/?#\s,]*@")
_VALUE_COLUMN = 40  # characters that values in a text are padded to, at most
_MOST_SHOWN = 200  # characters of a value in a text
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
    for member in fields(ModelSettings):
        value, in_effect = getattr(model, member.name), getattr(fitted, member.name)
        if member.name in ("model", "model_alias") or in_effect == shared[member.name]:
            continue
        yield EffectiveSetting(member.name, in_effect, FITTED if in_effect != value else f"its entry in {PREFIX}MODEL")


def without_defaults(groups: Iterable[SettingGroup]) -> list[SettingGroup]:
    """Returns the groups with what some source has set, or the server has derived."""
    kept = [
        SettingGroup(title, [setting for setting in members if not setting.is_default]) for title, members in groups
    ]
    return [group for group in kept if group.settings]


def _effective(part: type, section: Iterable[Field[Any]], in_use: Any, raw: RawSettings) -> Iterator[EffectiveSetting]:
    """Yields settings of a part; `in_use` is the part in effect, None where the server has none of its kind."""
    sourced = raw.sourced_values(part)
    for member in section:
        value, source = sourced.get(member.name, (member.default, DEFAULT))
        in_effect = value if in_use is None else getattr(in_use, member.name)
        yield EffectiveSetting(
            member.name, in_effect, source if in_effect == value else DERIVED, _is_secret(member, in_effect)
        )


def _is_secret(field: Field[Any], value: Any) -> bool:
    return bool(value) and bool(field.metadata["is_secret"] or _PASSWORD.search(str(value)))


def groups_to_text(groups: Iterable[SettingGroup]) -> str:
    """Writes a table of values and their sources, in each group those that are no defaults first. Shows no secret."""
    rows = [
        (f"  {setting.name}", _short(setting), _printable(setting.source), group.title)
        for group in groups
        for setting in sorted(group.settings, key=lambda setting: setting.is_default)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    widths[1] = min(widths[1], _VALUE_COLUMN)
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
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def groups_to_toml(groups: Iterable[SettingGroup]) -> str:
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


def groups_to_json(groups: Iterable[SettingGroup]) -> str:
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
