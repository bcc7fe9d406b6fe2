"""Defines the bodies that Ollama's clients send.

Parses what stands in them in a form of its own: `keep_alive`, `format` and `options`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.dialects.chat.conversation import JsonFormat
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.fields import Fraction, GenerationFields, ModelName, Penalty, Positive, Window
from corosrv.formats.bodies import convert

MAX_MESSAGES = 2048
MAX_IMAGES = 1024  # of one message; the operator's limit is far below
MAX_CALLS = 512  # of one message
MAX_INPUTS = 2048
MAX_MEMBERS = 256  # of `options`

# What later versions of Ollama offer beyond the answer itself, and what earlier ones had.
UNSUPPORTED: fields.Neutral = {
    **fields.EVERYWHERE,
    **fields.NO_FORKS,
    "_debug_render_only": (False,),
}

Think = bool | Literal["low", "medium", "high"]
KeepFor = str | float | None
Options = Annotated[
    dict[str, Any],
    Meta(
        max_length=MAX_MEMBERS,
        description="num_predict, temperature, top_k, top_p, min_p, typical_p, seed, stop, repeat_last_n, "
        "repeat_penalty, presence_penalty, frequency_penalty, mirostat, mirostat_tau, mirostat_eta and num_keep. What "
        "steers the loading of a model, such as num_ctx, is the operator's: it is ignored, and `X-Corosrv-Ignored` "
        "names it",
    ),
]


class SamplingOptions(msgspec.Struct, kw_only=True):
    """The members of `options` that steer generating."""

    num_predict: int | None = None
    num_keep: Window | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    temperature: Positive | None = None
    top_k: Window | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    repeat_last_n: Window | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Positive | None = None
    mirostat_eta: Positive | None = None


_OPTION_NAMES = frozenset(SamplingOptions.__struct_fields__)
_SAME = _OPTION_NAMES - {"num_predict", "num_keep", "stop"}  # as GenerationFields have them


class NamedBody(msgspec.Struct, kw_only=True):
    """A request about one model, which older clients call `name`."""

    model: ModelName | None = None
    name: ModelName | None = None

    @property
    def model_name(self) -> str:
        """Returns the name that the client gives. Raises Refused where there is none."""
        if name := self.model or self.name:
            return name
        raise Refused("model is required", "model", "missing_required_parameter")


class RunBody(NamedBody, kw_only=True):
    """The fields of every request that a model has to be loaded for."""

    keep_alive: KeepFor = None
    options: Options | None = None
    priority: fields.Priority | None = None


class AnsweredBody(RunBody, kw_only=True):
    """The fields that a chat and a text have in common."""

    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: Think | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def n_probs(self) -> int:
        """Returns how many of the likeliest tokens are shown beside each; -1 where no token is."""
        return (self.top_logprobs or 0) if self.logprobs else -1


class CalledTool(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | str = {}


class OllamaCall(msgspec.Struct):
    """A call of a tool in a message of the assistant."""

    function: CalledTool
    id: str | None = None


class OllamaTurn(msgspec.Struct):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str], Meta(max_length=MAX_IMAGES)] | None = None
    tool_calls: Annotated[list[OllamaCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class OllamaFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(msgspec.Struct):
    function: OllamaFunction
    type: str | None = None


class OllamaChatBody(AnsweredBody, kw_only=True):
    messages: Annotated[list[OllamaTurn], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: list[OllamaTool] | None = None


class OllamaGenerateBody(AnsweredBody, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    images: Annotated[list[str], Meta(max_length=MAX_IMAGES)] | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedBody(RunBody, kw_only=True):
    input: str | Annotated[list[str], Meta(max_length=MAX_INPUTS)] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0)] | None = None


class OllamaEmbeddingBody(RunBody, kw_only=True):
    prompt: str | None = None


class ShowBody(NamedBody, kw_only=True):
    verbose: bool | None = None


class PullBody(NamedBody, kw_only=True):
    stream: bool | None = None
    insecure: bool | None = None


chat_decoder = fields.decoder(OllamaChatBody, UNSUPPORTED)
generate_decoder = fields.decoder(OllamaGenerateBody, UNSUPPORTED)
embed_decoder = msgspec.json.Decoder(OllamaEmbedBody)
embedding_decoder = msgspec.json.Decoder(OllamaEmbeddingBody)
show_decoder = msgspec.json.Decoder(ShowBody)
pull_decoder = msgspec.json.Decoder(PullBody)
name_decoder = msgspec.json.Decoder(NamedBody)


def sampling_options(body: RunBody) -> SamplingOptions:
    """Returns the options that steer generating. Raises Refused, which names the one at fault."""
    known = {name: value for name, value in (body.options or {}).items() if name in _OPTION_NAMES}
    return convert(known, SamplingOptions, "options")


def ignored_options(body: RunBody) -> list[str]:
    """Returns the names of the options that mean nothing here; null asks for nothing."""
    options = (body.options or {}).items()
    return [f"options.{name}" for name, value in options if name not in _OPTION_NAMES and value is not None]


def generation_fields(body: AnsweredBody, options: SamplingOptions, model: str) -> GenerationFields:
    """Makes the fields that all dialects have in common; `model`: its name here."""
    same = {name: getattr(options, name) for name in _SAME}
    n_predict = options.num_predict
    if n_predict is not None and n_predict < 1:
        n_predict = -1  # Ollama has 0 and all below it for as many as fit
    return GenerationFields(
        model=model,
        stream=body.stream is not False,
        n_predict=n_predict,
        n_keep=options.num_keep,
        priority=body.priority,
        **same,
    )


def answer_format(value: str | dict[str, Any] | None) -> JsonFormat | None:
    """Reads `format`. Raises Refused."""
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        return JsonFormat(value, "format")
    if value != "json":
        raise Refused(f'format must be "json" or a JSON schema, not {value[:40]!r}', "format")
    return JsonFormat(None, "format")


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(
    r"([+-]?)((?:\d{1,15}(?:\.\d{1,9})?(?:ns|us|µs|μs|ms|s|m|h)){1,8}|\d{1,15}(?:\.\d{1,9})?)", re.ASCII
)
_PIECE = re.compile(r"([\d.]+)(ns|us|µs|μs|ms|s|m|h)")


def keep_seconds(value: KeepFor) -> float | None:
    """Reads `keep_alive`: seconds, or a text such as `5m` and `1h30m`; below 0 is for ever.

    Returns infinity for that, and None where the request leaves it to the operator. Raises Refused.
    """
    if value is None or value == "":
        return None
    seconds = _seconds(value) if isinstance(value, str) else float(value)
    return math.inf if seconds < 0 else seconds


def _seconds(text: str) -> float:
    if (match := _DURATION.fullmatch(text.strip())) is None:
        raise Refused(f"keep_alive must be seconds, or a time such as '5m', not {text[:40]!r}", "keep_alive")
    pieces: Iterable[tuple[str, str]] = _PIECE.findall(match[2]) or [(match[2], "s")]
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    return -seconds if match[1] == "-" else seconds
