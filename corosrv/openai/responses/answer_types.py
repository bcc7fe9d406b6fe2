"""Types of the answers of the Responses API, for the API document. The tests hold real answers against these types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class OutputPart(msgspec.Struct):
    """A piece of an item's content."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class ResponseItem(msgspec.Struct):
    """A message, a thought, or a call that the model wants made; `arguments` are JSON text."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: str | msgspec.UnsetType = msgspec.UNSET
    content: list[OutputPart] | msgspec.UnsetType = msgspec.UNSET
    summary: list[Any] | msgspec.UnsetType = msgspec.UNSET
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"]


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseAnswer(msgspec.Struct):
    """A response, which also says how it was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float


class ResponseEvent(msgspec.Struct):
    """One event of a streamed response; what else it holds goes by its `type`."""

    type: str
    sequence_number: int


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"]
    deleted: bool
