"""Types of the answers of OpenAI's endpoints: the answers are made of them, and the API document describes them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from corosrv.dialects.generation.job_usage import PromptProgress, Timings
from corosrv.dialects.generation.native import NativeCompletion, TokenLikelihood

Finish = Literal["stop", "length", "tool_calls", "abort"]


class ErrorMembers(msgspec.Struct):
    """One error: `message` for people, `type` and `code` for programs, `param` the path of the field at fault.

    For a prompt that is too long also its tokens, and those that fit.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class ErrorAnswer(msgspec.Struct):
    """Any answer that is not the one asked for."""

    error: ErrorMembers


class PromptTokensDetails(msgspec.Struct, omit_defaults=True):
    cached_tokens: int
    image_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """Counts the guessed tokens that came true, and those that did not, where the request has a `prediction`.

    Guesses from the prompt and the answer so far, which are made where the prediction gives none, count as well.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct):
    """Prompt tokens count once, however many answers; those of all answers are summed.

    `compute_ms` is there with `include_compute`: milliseconds of the machine for all answers together, by their share
    of each step.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    compute_ms: float | msgspec.UnsetType = msgspec.UNSET


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLikelihood] | None
    refusal: None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct):
    """A call that the model wants made; `arguments` are JSON text."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(msgspec.Struct):
    """A complete answer to a conversation; with `verbose` also in llama-server's form."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    service_tier: Literal["default", "flex"] | msgspec.UnsetType = msgspec.UNSET
    verbose: NativeCompletion | msgspec.UnsetType = msgspec.field(name="__verbose", default=msgspec.UNSET)


class FunctionDelta(msgspec.Struct):
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct):
    """The begin of a call, with `id` and the name of its function, or more of its arguments."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta | msgspec.UnsetType = msgspec.UNSET


class MessageDelta(msgspec.Struct):
    """The members that one event adds to a message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(msgspec.Struct):
    """One event of a streamed answer; `[DONE]` follows the last."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    service_tier: Literal["default", "flex"] | msgspec.UnsetType = msgspec.UNSET
    verbose: NativeCompletion | msgspec.UnsetType = msgspec.field(name="__verbose", default=msgspec.UNSET)


class TextLogprobs(msgspec.Struct):
    """Log-probabilities: OpenAI's lists where `logprobs` asked; `content`, as in chats, where `n_probs` did."""

    tokens: list[str] | msgspec.UnsetType = msgspec.UNSET
    token_logprobs: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    top_logprobs: list[dict[str, float] | None] | msgspec.UnsetType | None = msgspec.UNSET
    text_offset: list[int] | msgspec.UnsetType = msgspec.UNSET
    content: list[TokenLikelihood] | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class TextCompletion(msgspec.Struct):
    """A prompt continued; also one event of a stream, where `finish_reason` is null until the end."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    service_tier: Literal["default", "flex"] | msgspec.UnsetType = msgspec.UNSET
    verbose: NativeCompletion | msgspec.UnsetType = msgspec.field(name="__verbose", default=msgspec.UNSET)


class DownloadProgress(msgspec.Struct):
    """Bytes of a model's files that are there, and of all of them; 0 before they are known."""

    bytes: int
    total: int


class ModelStatus(msgspec.Struct):
    """State of a model, as llama-server's router says it; `progress` while it is downloaded from a hub."""

    value: Literal["loaded", "loading", "downloading", "unloaded"]
    failed: bool | msgspec.UnsetType = msgspec.UNSET
    progress: DownloadProgress | msgspec.UnsetType = msgspec.UNSET


class ListedModel(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    tags: list[str]
    meta: dict[str, Any]
    status: ModelStatus
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    capabilities: list[str] | msgspec.UnsetType = msgspec.UNSET  # not for clients of Anthropic
    parent: str | msgspec.UnsetType = msgspec.UNSET  # of a LoRA adapter: its model


class ModelList(msgspec.Struct):
    """Every model, loaded or not; `models` has them once more, for clients of Ollama."""

    object: Literal["list"]
    data: list[ListedModel]
    models: list[dict[str, Any]]
    has_more: bool


class ControlAnswer(msgspec.Struct, omit_defaults=True):
    """Tells whether a chat was there to be controlled; `message`: why not."""

    success: bool
    message: str = ""


class InputTokens(msgspec.Struct):
    """Number of tokens that an input has for the model."""

    object: Literal["response.input_tokens"]
    input_tokens: int
