"""Bodies to Jobs: what a request asks for, checked before anything is queued."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.errors import NotSupported, Refused
from corosrv.http.body import check_text
from corosrv.jobs import Job, Messages, Prompt, Sampling, Text, Tokens
from corosrv.openai import schema

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED_ARGUMENTS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template",
     "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler",
     "joiner", "caller", "loop", "self")
)  # fmt: skip
_MAX_ARGUMENT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator chose for requests that do not say."""

    max_tokens: int | None
    temperature: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request: the job, and how its answer is wanted."""

    job: Job
    stream: bool
    include_usage: bool


def chat(body: schema.ChatBody, unsupported: msgspec.Struct, defaults: Defaults) -> Call:
    """A chat completion. Raises Refused, which names the parameter."""
    _refuse_unsupported(unsupported, {**schema.UNSUPPORTED, **schema.UNSUPPORTED_IN_CHAT})
    if body.chat_template is not None:
        raise NotSupported("chat_template: a template in a request is not run here", "chat_template")
    messages = tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages))
    is_last_ours = messages[-1]["role"] == "assistant"
    if is_last_ours and len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise Refused("messages: two assistant messages in a row at the end", "messages")
    if body.add_generation_prompt and body.continue_final_message:
        raise Refused(
            "add_generation_prompt and continue_final_message contradict each other", "continue_final_message"
        )
    if body.continue_final_message and not is_last_ours:
        raise Refused("continue_final_message: the last message must be the assistant's", "continue_final_message")
    continue_final = is_last_ours and not body.add_generation_prompt and body.continue_final_message is not False
    prompt = Messages(
        messages,
        add_generation_prompt=not continue_final and body.add_generation_prompt is not False,
        continue_final=continue_final,
        template_arguments=_template_arguments(body.chat_template_kwargs or {}),
    )
    return _call(body, (prompt,), least_tokens=1, defaults=defaults)


def completion(body: schema.CompletionBody, unsupported: msgspec.Struct, defaults: Defaults) -> Call:
    """A text completion. Raises Refused, which names the parameter."""
    _refuse_unsupported(unsupported, {**schema.UNSUPPORTED, **schema.UNSUPPORTED_IN_COMPLETIONS})
    return _call(body, tuple(_prompts(body.prompt)), least_tokens=0, defaults=defaults)


def _call(body: schema.GenerationBody, prompts: tuple[Prompt, ...], least_tokens: int, defaults: Defaults) -> Call:
    if body.stream_options is not None and not body.stream:
        raise Refused("stream_options is only allowed with stream: true", "stream_options")
    job = Job(
        prompts=prompts,
        n=body.n or 1,
        max_tokens=_max_tokens(body, least_tokens, defaults.max_tokens),
        sampling=_sampling(body, defaults),
        stop=_stops(body.stop),
        share_prefix=body.cache_prompt is not False,
        model=body.model,
    )
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Call(job, bool(body.stream), include_usage)


def _refuse_unsupported(sent: msgspec.Struct, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    for name, neutral in unsupported.items():
        value = getattr(sent, name)
        # True == 1 in Python, and not here; 0.0 asks for as little as 0 does.
        if value is not None and not any(
            value == known and isinstance(value, bool) == isinstance(known, bool) for known in neutral
        ):
            raise NotSupported(f"{name} is not supported by this server yet", name, "unsupported_parameter")


def _message(message: schema.Message, param: str) -> dict[str, Any]:
    if message.role == "tool" or message.tool_calls or message.function_call:
        raise NotSupported(f"{param}: tool calls are not supported by this server yet", param, "unsupported_parameter")
    if message.role not in _ROLES:
        raise Refused(
            f"{param}.role must be system, developer, user or assistant, not '{message.role[:40]}'", f"{param}.role"
        )
    return {"role": _ROLES[message.role], "content": _content(message, f"{param}.content")}


def _content(message: schema.Message, param: str) -> str:
    content = message.content
    if isinstance(content, str):
        return check_text(content, param)
    if isinstance(content, list):
        return "".join(_part(part, f"{param}[{i}]") for i, part in enumerate(content))
    if content is None and message.role == "assistant":
        return ""
    raise Refused(f"{param} is required: a string or a list of parts", param, "missing_required_parameter")


def _part(part: dict[str, Any], param: str) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise NotSupported(
            f"{param}: this model reads parts of type 'text' only, not {str(kind)[:40]!r}", param, "unsupported_content"
        )
    if not isinstance(text, str):
        raise Refused(f"{param}.text must be a string", f"{param}.text")
    return check_text(text, f"{param}.text")


def _template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if not _ARGUMENT_NAME.fullmatch(name) or name in _RESERVED_ARGUMENTS:
            raise Refused(f"{param} is no name for a template argument", "chat_template_kwargs")
        if not isinstance(value, (str, int, float, bool, type(None))) or len(str(value)) > _MAX_ARGUMENT:
            raise Refused(f"{param} must be a scalar of at most {_MAX_ARGUMENT} characters", "chat_template_kwargs")
    return arguments


def _prompts(prompt: str | list[Any]) -> Iterable[Prompt]:
    if isinstance(prompt, str):
        return [Text(check_text(prompt, "prompt"))]
    if not prompt:
        raise Refused("prompt must not be an empty list", "prompt")
    if _is_ids(prompt):
        return [Tokens(tuple(prompt))]
    if len(prompt) > schema.MAX_PROMPTS:
        raise Refused(f"prompt: at most {schema.MAX_PROMPTS} prompts in one request, not {len(prompt)}", "prompt")
    return [_prompt(one, f"prompt[{i}]") for i, one in enumerate(prompt)]


def _prompt(prompt: Any, param: str) -> Prompt:
    if isinstance(prompt, str):
        return Text(check_text(prompt, param))
    if isinstance(prompt, list) and prompt and _is_ids(prompt):
        return Tokens(tuple(prompt))
    raise Refused(f"{param} must be a string or a list of token ids", param)


def _is_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def _max_tokens(body: schema.GenerationBody, least: int, default: int | None) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = getattr(body, name)
        if value is None:
            continue
        if value != -1 and value < least:
            raise Refused(f"{name} must be at least {least}, or -1 for as many as fit, not {value}", name)
        return None if value == -1 else value
    return default


def _sampling(body: schema.GenerationBody, defaults: Defaults) -> Sampling:
    names = ("top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
             "repeat_last_n", "ignore_eos")  # fmt: skip
    chosen: dict[str, Any] = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        chosen["top_k"] = max(body.top_k, 0)  # -1 keeps all, as elsewhere
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        seed=_seed(body.seed, defaults.seed),
        logit_bias=tuple(_biases(body.logit_bias or {})),
        grammar=check_text(body.grammar or "", "grammar"),
        **chosen,
    )


def _seed(seed: int | None, default: int | None) -> int | None:
    if seed is None:
        return default
    return None if seed == -1 else seed % 2**32


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > schema.MAX_STOPS:
        raise Refused(f"stop: at most {schema.MAX_STOPS} strings, not {len(stops)}", "stop")
    if "" in stops:
        raise Refused("stop: a stop string must not be empty", "stop")
    return tuple(check_text(one, "stop") for one in stops)


def _biases(
    biases: dict[str, float | bool] | list[tuple[int | str, float | bool]],
) -> Iterable[tuple[int | str, float]]:
    if len(biases) > schema.MAX_BIASES:
        raise Refused(f"logit_bias: at most {schema.MAX_BIASES} tokens, not {len(biases)}", "logit_bias")
    if isinstance(biases, dict):
        return [(_token_id(key), _bias(bias)) for key, bias in biases.items()]
    return [(key if isinstance(key, int) else check_text(key, "logit_bias"), _bias(bias)) for key, bias in biases]


def _token_id(key: str) -> int:
    if not re.fullmatch(r"\d{1,9}", key, re.ASCII):
        raise Refused(f"logit_bias: {key[:40]!r} is no token id", "logit_bias")
    return int(key)


def _bias(bias: float | bool) -> float:
    if bias is False:
        return -math.inf
    if bias is True or not -100 <= bias <= 100:
        raise Refused("logit_bias: a bias must be from -100 to 100, or false to ban the token", "logit_bias")
    return float(bias)
