"""Translates requests of Ollama's clients to those of OpenAI's API, which upstreams speak, and answers back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, WorkerLost
from corosrv.dialects.chat.conversation import check_count, misplaced_image
from corosrv.dialects.ollama import parse, schema
from corosrv.dialects.ollama.answers import (
    DONE_REASON,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaError,
    OllamaFunctionCall,
    OllamaToolCall,
    Stopwatch,
    call_arguments,
    chat_line,
    encode_line,
    nanoseconds,
    text_line,
    timestamp,
)
from corosrv.formats.bodies import check_text
from corosrv.gateway.forwarding.streamed_body import AnswerJoin

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
# As llama-server and corosrv call them; other servers pass over what they do not know, or refuse it by its name.
_OPTIONS = {name: name for name in schema.SamplingOptions.__struct_fields__} | {
    "num_predict": "max_tokens",
    "num_keep": "n_keep",
}
_KINDS = {"iVBOR": "png", "/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}  # of images, by the beginning of their base64
_MOST_WORDS = 500  # characters of an error that is no JSON


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request as an upstream gets it."""

    path: str
    members: dict[str, Any]

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.members)


def chat_request(body: schema.OllamaChatBody, model: str) -> TranslatedRequest:
    """Translates a conversation; `model`: its name at the upstream. Raises Refused, which names the field at fault."""
    check_count(body.tools or ())
    members: dict[str, Any] = {"messages": _messages(body.messages or ())}
    if body.tools:
        members["tools"] = [{"type": "function", "function": tool.function} for tool in body.tools]
    return TranslatedRequest(CHAT, _members(body, model) | members | _chat_members(body))


def text_request(body: schema.OllamaGenerateBody, model: str) -> TranslatedRequest:
    """Translates a prompt: to a conversation of one turn, or to a text if no template is wanted. Raises Refused."""
    parse.check_text_fields(body)
    members = _members(body, model)
    if body.raw or body.suffix:
        if name := next((name for name in ("format", "images", "logprobs") if getattr(body, name)), ""):
            raise NotSupported(f"{name}: an upstream's model takes it with a template, without raw and suffix", name)
        suffix = {"suffix": check_text(body.suffix, "suffix")} if body.suffix else {}
        return TranslatedRequest(TEXT, members | {"prompt": check_text(body.prompt or "", "prompt")} | suffix)
    turns = [schema.OllamaTurn("system", body.system)] if body.system else []
    turns.append(schema.OllamaTurn("user", body.prompt, images=body.images))
    return TranslatedRequest(CHAT, members | {"messages": _messages(turns)} | _chat_members(body))


def embed_request(body: schema.OllamaEmbedBody | schema.OllamaEmbeddingBody, model: str) -> TranslatedRequest:
    """Translates a request for vectors."""
    if isinstance(body, schema.OllamaEmbeddingBody):
        return TranslatedRequest(EMBEDDINGS, {"model": model, "input": body.prompt or ""})
    size = {"dimensions": body.dimensions} if body.dimensions else {}
    return TranslatedRequest(EMBEDDINGS, {"model": model, "input": body.input or ""} | size)


def _members(body: schema.AnsweredBody, model: str) -> dict[str, Any]:
    """Returns the members that chats and texts have alike."""
    options = schema.sampling_options(body)
    values = {_OPTIONS[name]: getattr(options, name) for name in _OPTIONS}
    if (options.num_predict or 0) < 1:
        values["max_tokens"] = None
    members = {"model": model, "priority": body.priority, **values}
    if body.stream is not False:
        members |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in members.items() if value is not None}


def _chat_members(body: schema.AnsweredBody) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if body.logprobs:
        members |= {"logprobs": True, "top_logprobs": body.n_probs}
    if (form := schema.answer_format(body.format)) is not None:
        described = {"name": "answer", "schema": form.schema, "strict": True}
        by_schema = {"type": "json_schema", "json_schema": described}
        members["response_format"] = {"type": "json_object"} if form.schema is None else by_schema
    if isinstance(body.think, str):
        members["reasoning_effort"] = body.think
    elif body.think is not None:
        members["chat_template_kwargs"] = {"enable_thinking": body.think}
    return members


def _messages(turns: Sequence[schema.OllamaTurn]) -> list[dict[str, Any]]:
    without = [msgspec.structs.replace(turn, images=None) for turn in turns]
    return [
        _message(dict(made), turn.images or (), f"messages[{number}].images")
        for number, (made, turn) in enumerate(zip(parse.turns(without, None), turns, strict=True))
    ]


def _message(message: dict[str, Any], images: Iterable[str], param: str) -> dict[str, Any]:
    if pictures := [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in images]:
        if message["role"] in ("system", "assistant"):
            raise misplaced_image(param, "messages of the user and results of tools")
        text = [{"type": "text", "text": message["content"]}] if message["content"] else []
        message["content"] = [*pictures, *text]
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [call | {"function": _function(**call["function"])} for call in calls]
    return message


def _function(name: str, arguments: Any) -> dict[str, str]:
    """Returns a call's function with its arguments as the text that OpenAI's API has."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"name": name, "arguments": text}


def _data_url(image: str) -> str:
    if image.startswith("data:"):
        return image
    kind = next((kind for beginning, kind in _KINDS.items() if image.startswith(beginning)), "png")
    return f"data:image/{kind};base64,{image}"


# Answers


@dataclass(slots=True)
class OllamaTranslation:
    """Makes Ollama's answer of an upstream's: line by line of a stream, or whole."""

    name: str  # of the model, as the client has it
    is_chat: bool
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def _piece(self) -> Callable[..., Any]:
        return chat_line if self.is_chat else text_line

    def answer(self, answer: dict[str, Any]) -> Any:
        """Translates the answer to a chat or a text. Raises LookupError, TypeError or ValueError for none."""
        (choice, *_) = answer["choices"]
        message = choice.get("message") or {"content": choice.get("text")}
        more = self._frame | _logprobs(choice) | self._end(answer, choice)
        return self._piece(*_texts(message), _calls(message), **more)

    def line(self, choice: dict[str, Any]) -> bytes:
        """Makes the line of a piece of the answer; empty where it has no text. Calls of tools come at the end."""
        texts = _texts(choice.get("delta") or {"content": choice.get("text")})
        logprobs = _logprobs(choice)
        return encode_line(self._piece(*texts, **self._frame, **logprobs)) if any(texts) or logprobs else b""

    def end(self, answer: dict[str, Any]) -> bytes:
        """Makes the last lines of a stream: the calls of tools, and the figures."""
        (choice, *_) = answer["choices"]
        calls = _calls(choice.get("message") or {})
        called = encode_line(self._piece(calls=calls, **self._frame)) if calls else b""
        return called + encode_line(self._piece(**self._frame, **self._end(answer, choice)))

    @property
    def _frame(self) -> dict[str, Any]:
        return {"model": self.name, "created_at": timestamp()}

    def _end(self, answer: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
        """Returns the members of the last line. Times of reading and decoding are told by llama-server and corosrv."""
        usage, timings = answer.get("usage") or {}, answer.get("timings") or {}
        return {
            "done": True,
            "done_reason": DONE_REASON.get(choice.get("finish_reason") or "stop", "stop"),
            "total_duration": self.stopwatch.total,
            "load_duration": 0,
            "prompt_eval_count": int(usage.get("prompt_tokens") or 0),
            "prompt_eval_duration": nanoseconds(float(timings.get("prompt_ms") or 0) / 1000),
            "eval_count": int(usage.get("completion_tokens") or 0),
            "eval_duration": nanoseconds(float(timings.get("predicted_ms") or 0) / 1000),
        }

    def vectors(self, answer: dict[str, Any]) -> OllamaEmbeddings:
        """Translates vectors, each brought to the length 1. Raises as `answer`."""
        used = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        return OllamaEmbeddings(self.name, list(map(_of_length_1, _vectors(answer))), self.stopwatch.total, 0, used)

    def vector(self, answer: dict[str, Any]) -> OllamaEmbedding:
        """Translates the answer to the older request, which has one text. Raises as `answer`."""
        return OllamaEmbedding(_vectors(answer)[0])


class LineJoin(AnswerJoin):
    """Joins a stream's events, and makes Ollama's lines of them meanwhile."""

    def __init__(self, translation: OllamaTranslation, *, is_chat: bool) -> None:
        """`is_chat`: the upstream answers a chat, not a text."""
        super().__init__(1, is_chat=is_chat)
        self._translation = translation
        self._lines: list[bytes] = []

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        for choice in event.get("choices") or ():
            self._lines.append(self._translation.line(choice))

    def drain(self) -> bytes:
        """Returns the lines since the last call."""
        lines, self._lines = b"".join(self._lines), []
        return lines

    def end(self) -> bytes:
        """Makes the last lines. Raises WorkerLost for a stream that has no end."""
        if not self.is_complete:
            raise WorkerLost("the upstream's stream broke off")
        return self._translation.end(self.answer())


def error_of(body: bytes) -> OllamaError:
    """Translates the body of an upstream's error, whatever form it has."""
    try:
        found = msgspec.json.decode(body)
    except ValueError:
        found = body.decode("utf-8", "replace").strip()[:_MOST_WORDS]
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return OllamaError(found if isinstance(found, str) and found else "the upstream failed, and did not say why")


def _texts(message: dict[str, Any]) -> tuple[str, str]:
    """Returns the text and the thoughts of a message, or of a piece of one."""
    return message.get("content") or "", message.get("reasoning_content") or message.get("reasoning") or ""


def _logprobs(choice: dict[str, Any]) -> dict[str, Any]:
    """Returns the member for the tokens of a chat's piece, which Ollama describes as OpenAI's API does."""
    tokens = (choice.get("logprobs") or {}).get("content")
    return {"logprobs": tokens} if tokens else {}


def _calls(message: dict[str, Any]) -> list[OllamaToolCall]:
    functions = [(call.get("id") or "", call["function"]) for call in message.get("tool_calls") or ()]
    return [
        OllamaToolCall(id, OllamaFunctionCall(one["name"], call_arguments(one.get("arguments") or "{}"), number))
        for number, (id, one) in enumerate(functions)
    ]


def _vectors(answer: dict[str, Any]) -> list[list[float]]:
    rows = sorted(answer["data"], key=lambda row: row.get("index") or 0)
    return [[float(number) for number in row["embedding"]] for row in rows]


def _of_length_1(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(number * number for number in vector)) or 1.0
    return [number / length for number in vector]
