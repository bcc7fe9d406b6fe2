"""The settings of a server and its models, checked and frozen. `sources` says where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from corosrv.errors import SettingsError
from corosrv.settings import model_list, sources
from corosrv.settings.checks import (
    DAY,
    FOLDER,
    MAX_INT32,
    Check,
    at_least,
    between,
    empty_or,
    of_bytes,
    one_of,
    or_else,
)
from corosrv.settings.model_list import SYNTHETIC
from corosrv.settings.predictor import PredictionSettings
from corosrv.settings.sources import PREFIX, setting

LLAMA_MAX_SLOTS = 256


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one server process is told; read once, at start. `COROSRV_` and the name in capitals sets each."""

    model: str = setting(
        "",
        "path of a GGUF, or synthetic:?tokens_per_s=20; empty: the packaged SmolLM2. Several: NAME=PATH, separated by "
        "commas, each with settings of its own behind a question mark: small=small.gguf?ctx=2048&slots=4&alias=tiny",
    )
    model_alias: str = setting("", "comma-separated names under which the model is listed; empty: the file's stem")
    model_bytes: int = setting(
        0,
        "bytes that all loaded models may take; idle ones make room, the least recently used first; 0: no limit",
        check=of_bytes(0),
    )
    model_idle_s: float = setting(
        0.0, "seconds without a job after which a model is unloaded; 0: never", check=between(0, DAY)
    )
    model_wait_s: float = setting(
        300.0, "seconds that a request waits for its model to be loaded", check=between(0, DAY)
    )
    ctx: int = setting(
        4096,
        "tokens of context per slot, at most what the model was trained for",
        per_model=True,
        check=between(16, MAX_INT32),
    )
    slots: int = setting(32, "sequences decoded at once, up to 256", per_model=True)
    queue: int = setting(10_000, "jobs that may wait for a slot", per_model=True, check=between(0, MAX_INT32))
    queue_per_key: int = setting(
        2500,
        "jobs of one API key that may run and wait; 0: as many as of all",
        per_model=True,
        check=between(0, MAX_INT32),
    )
    queue_timeout_s: float = setting(
        0.0,
        "seconds that a job may wait for a slot before it is ended with 503; 0: as long as it takes",
        per_model=True,
        check=between(0, DAY),
    )
    threads: int = setting(0, "compute threads; 0: physical cores", per_model=True, check=between(0, 1024))
    kernels: str = setting(
        "auto",
        "auto: corosrv's own matrix products and attention where they are faster; ggml: libllama's alone",
        per_model=True,
        check=one_of("auto", "ggml"),
    )
    step_ms: float = setting(
        60.0,
        "target milliseconds of a step while others stream; up to 4 times that if many prompts wait",
        per_model=True,
        check=between(1, 60_000),
    )
    reader_bytes: int = setting(
        262_144, "unread bytes of one reader at which its sequences are paused", per_model=True, check=of_bytes(1024)
    )
    stall_timeout_s: float = setting(
        10.0,
        "seconds that a reader may be at reader_bytes before its job is ended; 0: as long as it is",
        per_model=True,
        check=between(0, DAY),
    )
    cache_bytes: int = setting(
        1_073_741_824,
        "bytes of computed prompts and answers kept for prompts that begin alike; 0: none are",
        per_model=True,
        check=of_bytes(0),
    )
    grammar_bytes: int = setting(65_536, "bytes of a grammar at most", per_model=True, check=between(1, MAX_INT32))
    grammar_depth: int = setting(
        128, "brackets in brackets of a grammar at most", per_model=True, check=between(1, 1000)
    )
    grammar_rules: int = setting(2000, "rules of a grammar at most", per_model=True, check=between(1, MAX_INT32))
    grammar_repetitions: int = setting(
        2000, "repetitions of one item of a grammar at most", per_model=True, check=between(1, MAX_INT32)
    )
    grammar_elements: int = setting(
        65_536,
        "elements of a grammar at most, with everything written out that is repeated",
        per_model=True,
        check=between(1, MAX_INT32),
    )
    grammar_token_ms: float = setting(
        20.0,
        "milliseconds, some, that a grammar may take for one token before its request is ended",
        per_model=True,
        check=between(1, 60_000),
    )
    deterministic: bool = setting(
        False, "1: a seed's text depends on no neighbour, no shared prefix and no load", per_model=True
    )
    chat_template: str = setting(
        "",
        "chat template instead of the model's own: Jinja's text, or the name of one that llama.cpp has built in "
        "(llama3, chatml, gemma, ...)",
        per_model=True,
    )
    chat_template_file: str = setting(
        "", "path of a file with a chat template instead of the model's own", per_model=True
    )
    reasoning: str = setting(
        "auto",
        "on, off: whether a model that can think does; auto: as its template has it",
        per_model=True,
        check=one_of("on", "off", "auto"),
    )
    reasoning_format: str = setting(
        "deepseek",
        "deepseek: thoughts come apart from the text, as reasoning_content; none: as part of it",
        check=one_of("deepseek", "none"),
    )
    pooling: str = setting(
        "",
        "vectors of a text's tokens to one: mean, cls, last, none, or rank for scores; empty: as the model says",
        per_model=True,
        check=empty_or(one_of("none", "mean", "cls", "last", "rank")),
    )
    context_shift: bool = setting(
        False,
        "0: a full context ends the answer; dropping its oldest tokens is not built yet",
        check=Check(lambda shifts: not shifts, "must be 0: dropping a context's tokens is not built yet"),
    )
    lora: str = setting(
        "", "comma-separated paths of LoRA adapters, each with :SCALE behind it where that is not 1", per_model=True
    )
    n_predict: int = setting(
        -1,
        "tokens of an answer when the request does not say; -1: until the context is full",
        check=or_else(-1, at_least(1)),
    )
    temp: float = setting(0.8, "temperature when the request does not say", check=between(0, 100))
    seed: int = setting(-1, "seed when the request does not say; -1: random", check=between(-1, 2**32 - 1))
    strict_model: bool = setting(
        False, "1: an unknown model is 404, as it is where several are served; 0: the only one answers to every name"
    )
    max_body_bytes: int = setting(33_554_432, "larger request bodies are refused with 413", check=at_least(1024))
    response_store_bytes: int = setting(
        67_108_864,
        "bytes of answers of the Responses API kept to be read again and gone on from; 0: none are",
        check=of_bytes(0),
    )
    api_keys: str = setting("", "comma-separated bearer keys; empty: no key is asked for")
    cors_origins: str = setting(
        "",
        "comma-separated origins whose web pages may call, as https://page.example; localhost: pages of this machine; "
        "*: any; empty: any if API keys are set, otherwise localhost. Only origins given in full may send credentials",
    )
    allowed_hosts: str = setting(
        "",
        "comma-separated host names by which a server without API keys may be called, besides local names and "
        "addresses; *.example.com: every name below; *: any; empty: only local ones on a loopback address, any on "
        "others and as a blueprint in another Flask app",
    )
    tags: str = setting("", "comma-separated words about the model, for whoever lists it", per_model=True)
    metrics: bool = setting(True, "1: GET /metrics answers")
    embeddings: bool = setting(True, "1: embeddings are given; 0: 501")
    slots_endpoint: bool = setting(True, "1: GET /slots answers")
    props: bool = setting(False, "1: POST /props answers")
    slot_save_path: str = setting(
        "", "folder for what slots hold, on request; empty: none is kept", check=empty_or(FOLDER)
    )
    sse_ping_interval: float = setting(
        15.0, "seconds of silence in a stream before a comment line; -1: never", check=or_else(-1, between(0.1, DAY))
    )
    write_timeout_s: float = setting(
        30.0, "seconds a client may accept nothing before its stream is ended", check=between(1, DAY)
    )
    head_timeout_s: float = setting(10.0, "seconds in which the head of a request has to arrive", check=between(1, DAY))
    body_timeout_s: float = setting(30.0, "seconds in which the body of a request has to arrive", check=between(1, DAY))
    body_rate: float = setting(
        1024.0, "bytes a second that a body has to bring, after 10 seconds", check=between(1, 1_000_000_000)
    )
    drain_s: float = setting(
        25.0, "seconds that running streams get to finish after a stop signal", check=between(0, DAY)
    )
    engine: str = setting(
        "inproc",
        "inproc: the engine lives in this process",
        check=Check(lambda engine: engine == "inproc", "must be 'inproc': a shared engine is not built yet"),
    )

    def __post_init__(self) -> None:
        sources.check(self)
        if not 1 <= self.slots <= self.max_slots:
            raise sources.refused("slots", f"must be from 1 to {self.max_slots}", str(self.slots))
        if self.chat_template and self.chat_template_file:
            words = "must be empty where COROSRV_CHAT_TEMPLATE is set"
            raise sources.refused("chat_template_file", words, repr(self.chat_template_file))
        # Read here, so that what cannot be used stops the start.
        self.template  # noqa: B018
        self.adapters  # noqa: B018
        if self.is_synthetic:
            self.synthetic_options  # noqa: B018
        self.models  # noqa: B018

    @property
    def models(self) -> tuple[Settings, ...]:
        """The settings of each model, which has a name and a path of its own; the first is loaded at start."""
        entries = model_list.parse(self.model)
        if not entries[0].name:
            return (self,)
        if len(entries) > 1 and self.model_alias:
            raise SettingsError(f"{PREFIX}MODEL_ALIAS is for one model; of several, each has its own: NAME=PATH?alias=")
        models = tuple(map(self._of_model, entries))
        _check_names(models)
        return models

    def _of_model(self, entry: model_list.Entry) -> Settings:
        where = f"{PREFIX}MODEL: {entry.name}"
        if not entry.path:
            raise SettingsError(f"{where} needs a path: {entry.name}=PATH")
        aliases, chosen, others = self.model_alias, dict[str, Any](), []
        for name, value in entry.options:
            if name == "alias":
                aliases = value
            elif name in _PER_MODEL:
                chosen[name] = sources.parse(f"{where}: {name}", _KINDS[name], value)
            else:
                others.append(f"{name}={value}")
        path = entry.path
        if others and not path.startswith(SYNTHETIC):
            known = ", ".join(("alias", *sorted(_PER_MODEL)))
            raise SettingsError(f"{where}: {others[0]} is no setting of one model; these are: {known}")
        if others:
            path += "?" + "&".join(others)
        try:
            return replace(self, model=model_list.bare(path), model_alias=f"{entry.name},{aliases}", **chosen)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from None

    @property
    def has_model(self) -> bool:
        """Whether there is one: beside a predictor there may be none."""
        return bool(self.model)

    @property
    def is_synthetic(self) -> bool:
        return self.model.startswith(SYNTHETIC)

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Paths of LoRA adapters, and how much of each jobs get that do not say."""
        return model_list.adapters(self.lora)

    @property
    def max_slots(self) -> int:
        # Of a list, each is looked at by itself.
        is_list = bool(model_list.parse(self.model)[0].name)
        return 100_000 if self.is_synthetic or is_list else LLAMA_MAX_SLOTS

    @property
    def synthetic_options(self) -> dict[str, float]:
        """What stands behind `synthetic:?`, as numbers."""
        return model_list.synthetic_options(self.model)

    @property
    def template(self) -> str:
        """The operator's chat template, read from its file if need be; empty: the model's own. Raises SettingsError."""
        if not self.chat_template_file:
            return self.chat_template
        try:
            return Path(self.chat_template_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{PREFIX}CHAT_TEMPLATE_FILE cannot be read: {error}") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The model's id, then its aliases."""
        return tuple(dict.fromkeys(_words(self.model_alias))) or (model_list.stem(self.model),)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that the operator chose, the id among them; none where it is the file's."""
        return self.names if _words(self.model_alias) else ()

    @property
    def file(self) -> str:
        """The model's, without its folders; empty for one that has none."""
        return "" if self.is_synthetic else Path(self.model).name

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's tags."""
        return tuple(dict.fromkeys(_words(self.tags)))

    @property
    def keys(self) -> tuple[str, ...]:
        return _words(self.api_keys)

    @property
    def origins(self) -> tuple[str, ...]:
        return _words(self.cors_origins)

    @property
    def hosts(self) -> tuple[str, ...]:
        return _words(self.allowed_hosts)


def _words(listed: str) -> tuple[str, ...]:
    """The members of a comma-separated list, without the empty ones."""
    return tuple(word.strip() for word in listed.split(",") if word.strip())


def _check_names(models: tuple[Settings, ...]) -> None:
    names = [name for model in models for name in model.names]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{PREFIX}MODEL: the name '{name}' stands for two models")


def load(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from file (also `COROSRV_CONFIG`), environment and `overrides`, the later ones winning.

    Where nothing is said of a model it is the packaged one, unless a predictor is to be served. Raises SettingsError,
    which names the variable and the source.
    """
    said = sources.read(overrides, environ, file, _PARTS)
    values = said.of(Settings)
    if not values.get("model") and not said.of(PredictionSettings).get("predictor"):
        values["model"] = model_list.packaged_model()
    return Settings(**values)


def load_predictor(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> PredictionSettings | None:
    """As load(); None where no predictor is to be served. Where no model is asked for, `slots` are the predictor's."""
    said = sources.read(overrides, environ, file, _PARTS)
    values, server = said.of(PredictionSettings), said.of(Settings)
    if not values.get("predictor"):
        return None
    is_alone = not server.get("model")
    if is_alone and "slots" in server and "predictor_slots" not in said.own(PredictionSettings):
        values["predictor_slots"] = server["slots"]
    return PredictionSettings(**values)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: misspelt, or of another version."""
    names = (*sources.names(_PARTS), "config", "cflags", "llama_prefix")
    known = {PREFIX + name.upper() for name in names}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


_PARTS = (Settings, PredictionSettings)
_KINDS = sources.kinds(Settings)
_PER_MODEL = frozenset(field.name for field in fields(Settings) if field.metadata["per_model"])
