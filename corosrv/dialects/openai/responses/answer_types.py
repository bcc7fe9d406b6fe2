"""Types of the Responses API's answers: the answers are made of them, and the API document describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.dialects.generation.job_usage import PromptProgress, Timings
from corosrv.dialects.openai.responses import schema

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
ItemType = Literal[
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


_TOKEN = {"token": {"type": "string"}, "bytes": {"type": "array", "items": {"type": "integer"}},
          "logprob": {"type": "number"}}  # fmt: skip
_TOKEN_LIST = {"type": "array", "items": {"type": "object", "properties": _TOKEN}}
# JSON text, which is not read again where it is stored: an answer may have 100,000 likely tokens.
Logprobs = Annotated[
    msgspec.Raw,
    Meta(
        description="The tokens of the text with `include: ['message.output_text.logprobs']`; otherwise none",
        extra_json_schema={
            "type": "array",
            "items": {"type": "object", "properties": {**_TOKEN, "top_logprobs": _TOKEN_LIST}},
        },
    ),
]
NO_LOGPROBS = msgspec.Raw(b"[]")


class OutputPart(msgspec.Struct):
    """A piece of an item's content."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | msgspec.UnsetType = msgspec.UNSET
    logprobs: Logprobs | msgspec.UnsetType = msgspec.UNSET


class ResponseItem(msgspec.Struct):
    """A message, a thought, a call that the model wants made, or what an MCP server did; `arguments` are JSON text."""

    id: str
    type: ItemType
    status: ItemStatus | msgspec.UnsetType = msgspec.UNSET
    role: str | msgspec.UnsetType = msgspec.UNSET
    summary: list[Any] | msgspec.UnsetType = msgspec.UNSET
    content: list[OutputPart] | msgspec.UnsetType = msgspec.UNSET
    call_id: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    input: Annotated[str, Meta(description="What a custom tool is called with")] | msgspec.UnsetType = msgspec.UNSET
    server_label: str | msgspec.UnsetType = msgspec.UNSET
    tools: list[schema.McpListedTool] | msgspec.UnsetType = msgspec.UNSET
    output: str | msgspec.UnsetType | None = msgspec.UNSET
    error: Annotated[Any, Meta(description="Why a list or a call failed: a text or an object; else null")] = (
        msgspec.UNSET
    )
    approval_request_id: str | msgspec.UnsetType | None = msgspec.UNSET


CutReason = Literal["max_output_tokens", "abort"]


class IncompleteDetails(msgspec.Struct):
    reason: CutReason


class ResponseError(msgspec.Struct):
    code: str
    message: str


class InputTokensDetails(msgspec.Struct, omit_defaults=True):
    """Counts the prompt's tokens that were known; writing to the cache is not counted."""

    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(msgspec.Struct):
    """A response, which also repeats what its request asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[ResponseItem]
    usage: ResponseUsage | None
    model: str
    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: schema.ReasoningOptions
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    store: bool
    temperature: float
    text: schema.TextOptions
    tool_choice: str | schema.NamedTool
    tools: list[schema.Tool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    conversation: schema.Reference | msgspec.UnsetType = msgspec.UNSET


class CompactedResponse(msgspec.Struct):
    """A conversation made short: the user's messages, and a `compaction` item with a summary of all of it."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class ResponseEvent(msgspec.Struct):
    """One event of a streamed response; which members it has depends on its `type`."""

    type: str
    sequence_number: int
    response: ResponseObject | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    item: ResponseItem | msgspec.UnsetType = msgspec.UNSET
    part: OutputPart | msgspec.UnsetType = msgspec.UNSET
    logprobs: Logprobs | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    input: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET


class ReadQuery(msgspec.Struct):
    """Members of the query of a response that is read again."""

    stream: bool = False
    starting_after: int = 0  # the sequence number of the last event that the client has


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"]
    deleted: bool


class ConversationObject(msgspec.Struct):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(msgspec.Struct):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool
