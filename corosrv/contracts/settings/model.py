"""Settings of a model: how it is loaded and decoded. Checked and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs import check_template_arguments
from corosrv.contracts.settings import model_list, sources
from corosrv.contracts.settings.model_list import SYNTHETIC
from corosrv.contracts.settings.placement import DraftSettings, EncoderSettings, PlacementSettings
from corosrv.contracts.settings.sampling import (
    GrammarSettings,
    SamplerSettings,
    SamplingSettings,
    parse_object,
    parsed_by,
)
from corosrv.contracts.settings.sources import (
    DAY,
    MAX_INT32,
    PREFIX,
    between,
    empty_or,
    of_bytes,
    one_of,
    or_else,
    setting,
)

LLAMA_MAX_SLOTS = 256
SYNTHETIC_MAX_SLOTS = 100_000
_DRAFTED_ROWS = 16  # with a draft model, where nothing else is said


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    """Settings of a model's slots: how many, with how much memory, and how their steps are computed."""

    ctx: int = setting(
        0,
        "tokens of context per slot, at most what the model was trained for; 0: 4096, or what fits into memory",
        check=or_else(0, between(16, MAX_INT32)),
    )
    slots: int = setting(0, "sequences decoded at once, up to 256; 0: 32, or as many as fit into memory")
    kv_unified: bool = setting(
        False,
        "1: all slots share their context, slots times ctx tokens, and one may use all of it while others are idle; "
        "0: each has its own",
    )
    memory_bytes: int = setting(
        0,
        "bytes that the model may take with its KV cache; 0: a share of model_bytes, or what is free",
        check=of_bytes(0),
    )
    queue: int = setting(10_000, "jobs that may wait for a slot", check=between(0, MAX_INT32))
    queue_per_key: int = setting(
        2500,
        "jobs of one API key that may run or wait at once; 0: no limit of its own",
        check=between(0, MAX_INT32),
    )
    queue_timeout_s: float = setting(
        0.0,
        "seconds that a job may wait for a slot before it is ended with 503; 0: no limit",
        check=between(0, DAY),
    )
    threads: int = setting(0, "compute threads, at most; 0: physical cores", check=between(0, 1024))
    kernels: str = setting(
        "auto",
        "auto: corosrv's own matrix products and attention where they are faster; avx2, avx-vnni: those that need no "
        "more of the processor than this; ggml: libllama's alone",
        check=one_of("auto", "avx2", "avx-vnni", "ggml"),
    )
    batch: int = setting(512, "rows that one step computes at most", check=between(1, 65_536))
    step_ms: float = setting(
        60.0,
        "target milliseconds of a decode step while answers stream; up to 4 times that if many prompts wait",
        check=between(1, 60_000),
    )
    reader_bytes: int = setting(262_144, "unread bytes of one stream at which its job is paused", check=of_bytes(1024))
    stall_timeout_s: float = setting(
        10.0,
        "seconds that a job may stay paused at reader_bytes before it is ended; 0: no limit",
        check=between(0, DAY),
    )
    cache_bytes: int = setting(
        1_073_741_824,
        "bytes of KV cache kept of earlier prompts and answers, for prompts that begin alike; 0: none are kept",
        check=of_bytes(0),
    )
    row_bytes: int = setting(
        268_435_456,
        "bytes of embedding rows, of images and prompt_embeds, that waiting and running jobs may have together; one "
        "job alone may have more",
        check=of_bytes(0),
    )
    deterministic: bool = setting(
        False,
        "1: texts and log-probabilities depend on prompt and seed alone, not on other requests, cached prefixes or"
        " load; slower",
    )
    speculation: int = setting(
        0,
        "guesses of next tokens that one step computes at most, for texts that repeat their prompt, themselves or the "
        "request's prediction, and of the draft model; as many as pay. 0: none, or 16 where there is a draft model",
        check=between(0, 32),
    )
    record: str = setting(
        "",
        "path of a file that keeps what reaches the engine, prompts too, for corosrv replay; the file of a crash is "
        "renamed by the next start. Empty: nothing is recorded",
    )
    record_bytes: int = setting(
        67_108_864, "bytes that this file may have; the oldest of it goes first", check=of_bytes(1 << 20)
    )
    context_shift: bool = setting(
        False,
        "1: a full context drops its oldest tokens behind the first n_keep of a request, and the answer goes on; "
        "0: it ends the answer",
    )


def _template_arguments(text: str) -> dict[str, Any]:
    arguments = check_template_arguments(parse_object(text))
    if arguments.keys() & {"enable_thinking", "thinking"}:
        raise ValueError("thinking is for reasoning to say")
    return arguments


@dataclass(frozen=True, kw_only=True)
class ModelSettings(
    SlotSettings,
    DraftSettings,
    EncoderSettings,
    GrammarSettings,
    PlacementSettings,
    SamplingSettings,
    SamplerSettings,
):
    """Settings of one model: how it is loaded and decoded. Each of several models has all of them; see models_of()."""

    model: str = setting(
        "",
        "path of a GGUF, hf:OWNER/REPO:Q4_K_M for one of a hub, or synthetic:?tokens_per_s=20; empty: the packaged "
        "SmolLM2. Several: NAME=PATH, separated by commas, each with settings of its own behind a question mark: "
        "small=small.gguf?ctx=2048&slots=4&alias=tiny",
    )
    model_alias: str = setting("", "comma-separated names under which the model is listed; empty: the file's stem")
    tags: str = setting("", "comma-separated tags of the model, shown in GET /v1/models")
    lora: str = setting("", "comma-separated paths of LoRA adapters, each with :SCALE behind it if that is not 1")
    chat_template: str = setting(
        "",
        "chat template instead of the model's own: Jinja's text, or the name of one that llama.cpp has built in "
        "(llama3, chatml, gemma, ...)",
    )
    chat_template_file: str = setting("", "path of a file with a chat template instead of the model's own")
    reasoning: str = setting(
        "auto",
        "on, off: whether a model that can think does so; auto: as its chat template decides",
        check=one_of("on", "off", "auto"),
    )
    reasoning_format: str = setting(
        "deepseek",
        "deepseek, auto: thoughts are in reasoning_content, apart from the text; none: in the text; deepseek-legacy: "
        "in chat completions in both, and there the text has their tags",
        check=one_of("deepseek", "deepseek-legacy", "none", "auto"),
    )
    reasoning_budget: int = setting(
        -1,
        "tokens that thoughts may have where a chat does not say; 0: none, -1: as many as the model likes",
        check=between(-1, MAX_INT32),
    )
    reasoning_budget_message: str = setting("", "last words of thoughts that have spent their budget")
    template_arguments: str = setting(
        "",
        "JSON object of arguments that the chat template gets, unless a request's chat_template_kwargs have others; "
        "thinking is for reasoning to say",
        check=parsed_by(
            _template_arguments, "a JSON object of arguments for the template, none of them enable_thinking"
        ),
    )
    pooling: str = setting(
        "",
        "how the vectors of a text's tokens become one: mean, cls, last, none; rank: scores; empty: the model's own",
        check=empty_or(one_of("none", "mean", "cls", "last", "rank")),
    )

    def __post_init__(self) -> None:
        sources.check(self)
        max_slots = SYNTHETIC_MAX_SLOTS if self.is_synthetic else LLAMA_MAX_SLOTS
        if not 0 <= self.slots <= max_slots:
            raise sources.bad_value("slots", f"must be from 1 to {max_slots}, or 0 for what fits", str(self.slots))
        if self.chat_template and self.chat_template_file:
            words = "must be empty where COROSRV_CHAT_TEMPLATE is set"
            raise sources.bad_value("chat_template_file", words, repr(self.chat_template_file))
        if self.grammar and self.json_schema:
            words = "must be empty where COROSRV_GRAMMAR is set"
            raise sources.bad_value("json_schema", words, repr(self.json_schema))
        if 0 < self.image_max_tokens < self.image_min_tokens:
            words = f"must be at most COROSRV_IMAGE_MAX_TOKENS, which is {self.image_max_tokens}"
            raise sources.bad_value("image_min_tokens", words, str(self.image_min_tokens))
        # Read here as well, so that what cannot be used stops the start.
        _read_template(self)
        self.answer_grammar  # noqa: B018
        model_list.adapters(self.lora)
        self.check_together(self.deterministic)
        if self.context_shift and self.deterministic:
            # What is pre-empted after a shift is computed again without the tokens that it has dropped.
            words = "must be 0 where COROSRV_DETERMINISTIC is 1: shifted texts depend on when the server pauses them"
            raise sources.bad_value("context_shift", words, "1")
        if self.kv_unified and self.deterministic:
            words = "must be 0 where COROSRV_DETERMINISTIC is 1: sums over shared cells depend on who else has some"
            raise sources.bad_value("kv_unified", words, "1")
        if self.model_draft and (self.record or self.is_synthetic):
            other = "COROSRV_RECORD is set: a replay has no draft model" if self.record else "the model is synthetic"
            raise sources.bad_value("model_draft", f"must be empty where {other}", repr(self.model_draft))
        if self.is_hub:
            model_list.parse_hub_name(self.model)
        if self.is_synthetic:
            model_list.synthetic_options(self.model)
            if self.mmproj:
                raise sources.bad_value("mmproj", "must be empty for a synthetic model", repr(self.mmproj))

    @property
    def is_synthetic(self) -> bool:
        return self.model.startswith(SYNTHETIC)

    @property
    def is_hub(self) -> bool:
        """Returns whether the model is a name on a hub, whose files have to be found first."""
        return model_list.is_hub(self.model)

    @property
    def drafted_rows(self) -> int:
        """The guesses of next tokens that one step computes at most."""
        return self.speculation or (_DRAFTED_ROWS if self.model_draft else 0)

    @property
    def adapters(self) -> tuple[tuple[str, float], ...]:
        """Paths of LoRA adapters, each with its scale for jobs that name no adapters."""
        return model_list.adapters(self.lora)

    @property
    def synthetic_options(self) -> dict[str, float]:
        """The options behind `synthetic:?`, as numbers."""
        return model_list.synthetic_options(self.model)

    @property
    def template(self) -> str:
        """The operator's chat template, read from its file if need be; empty: the model's own. Raises SettingsError."""
        return _read_template(self)

    @property
    def template_defaults(self) -> dict[str, Any]:
        """Returns what the chat template is told where a conversation does not say it."""
        return {"enable_thinking": self.reasoning != "off", **_template_arguments(self.template_arguments)}

    @property
    def names(self) -> tuple[str, ...]:
        """The model's id, then its aliases."""
        if self.is_hub and not self.aliases:
            return (model_list.parse_hub_name(self.model).id,)
        return self.aliases or (model_list.stem(self.model),)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that the operator chose, the id among them; none where the id is the file's."""
        return tuple(dict.fromkeys(sources.split_words(self.model_alias)))

    @property
    def file(self) -> str:
        """The model's file without its folders; empty for a synthetic model, and one whose file is not known yet."""
        return "" if self.is_synthetic or self.is_hub else Path(self.model).name

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's tags."""
        return tuple(dict.fromkeys(sources.split_words(self.tags)))


def _read_template(settings: ModelSettings) -> str:
    if not settings.chat_template_file:
        return settings.chat_template
    try:
        return Path(settings.chat_template_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{PREFIX}CHAT_TEMPLATE_FILE cannot be read: {error}") from error


_KINDS = sources.kinds(ModelSettings)
# A list gives each model its own by writing them behind the path.
_OPTIONS = _KINDS.keys() - {"model", "model_alias"}
_SHORTER = {"draft": "model_draft"}


def models_of(values: Mapping[str, Any]) -> tuple[ModelSettings, ...]:
    """Makes the settings of each model that `model` lists; none where it is empty. The first is loaded at start.

    `values` are settings by name; each model has them but for those behind its own question mark. Raises SettingsError.
    """
    text = values.get("model", "")
    if not text:
        return ()
    entries = model_list.parse(text)
    if not entries[0].name:
        return (ModelSettings(**values),)
    if len(entries) > 1 and values.get("model_alias"):
        raise SettingsError(f"{PREFIX}MODEL_ALIAS is for one model; of several, each has its own: NAME=PATH?alias=")
    models = tuple(_of_entry(entry, values) for entry in entries)
    _check_names(models)
    return models


def queue_per_key_of(values: Mapping[str, Any]) -> int:
    """Returns how many calls one API key may have where no model is served. Raises SettingsError."""
    name = "queue_per_key"
    return ModelSettings(**({name: values[name]} if name in values else {})).queue_per_key


def _of_entry(entry: model_list.Entry, values: Mapping[str, Any]) -> ModelSettings:
    place = f"{PREFIX}MODEL: {entry.name}"
    if not entry.path:
        raise SettingsError(f"{place} needs a path: {entry.name}=PATH")
    aliases, own, unknown = values.get("model_alias", ""), dict[str, Any](), []
    for option, value in entry.options:
        name = _SHORTER.get(option, option)
        if name == "alias":
            aliases = value
        elif name in _OPTIONS:
            own[name] = sources.parse(f"{place}: {name}", _KINDS[name], value)
        else:
            unknown.append(f"{option}={value}")
    path = entry.path
    if unknown and not path.startswith(SYNTHETIC):
        names = ", ".join(("alias", *sorted(_OPTIONS)))
        raise SettingsError(f"{place}: {unknown[0]} is not a setting of one model; those are: {names}")
    if unknown:
        path += "?" + "&".join(unknown)
    own |= {"model": model_list.without_name(path), "model_alias": f"{entry.name},{aliases}"}
    try:
        return ModelSettings(**{**values, **own})
    except SettingsError as error:
        raise SettingsError(f"{place}: {error}") from None


def _check_names(models: tuple[ModelSettings, ...]) -> None:
    names = [name for model in models for name in model.names]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{PREFIX}MODEL: the name '{name}' stands for two models")
