"""The body of a response, and the items of its input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.dialects.generation import fields
from corosrv.dialects.generation.fields import ModelName
from corosrv.dialects.openai.structured_fields import StructuredOutputs, TierFields

MAX_ITEMS = 2048
MAX_PARTS = 2048  # of one item

UNSUPPORTED: fields.Neutral = {
    **fields.EVERYWHERE,
    **fields.NO_FORKS,
    "context_management": ([],),
    "moderation": (),
    "prompt": (),
    "stream_options": ({}, {"include_obfuscation": False}),
}


# As OpenAI's reference bounds them.
AddedItems = Annotated[list[dict[str, Any]], Meta(max_length=20)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ContentPart(msgspec.Struct):
    """A piece of a message, of a tool's output, or of thoughts."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    file_id: str | None = None
    detail: Any = None


Parts = Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)]
Content = str | Parts


class MessageItem(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class Reference(msgspec.Struct):
    """Stands for an item of a stored response."""

    id: str


class CallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str | dict[str, Any]
    namespace: str | None = None


class CustomCallItem(msgspec.Struct):
    call_id: str
    name: str
    input: str


class OutputItem(msgspec.Struct):
    call_id: str
    output: Content


class ReasoningItem(msgspec.Struct):
    summary: Parts = []
    content: Parts | None = None


class CompactionItem(msgspec.Struct):
    encrypted_content: str


class McpListedTool(msgspec.Struct):
    """A tool as its MCP server describes it."""

    name: str
    input_schema: Any
    description: str | None = None
    annotations: Any = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # there are the thoughts themselves, and no summaries


class McpListItem(msgspec.Struct):
    server_label: str
    tools: list[McpListedTool]


class McpCallItem(msgspec.Struct):
    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None


class ApprovalItem(msgspec.Struct):
    approval_request_id: str
    approve: bool
    reason: str | None = None


class ToolFilter(msgspec.Struct, omit_defaults=True):
    """Some of an MCP server's tools: those of these names, and those that say of themselves that they only read."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalFilter(msgspec.Struct, omit_defaults=True):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class Tool(msgspec.Struct, omit_defaults=True):
    """A function, a custom tool, a namespace with functions in it, or the tools of an MCP server.

    Whatever else there is belongs to OpenAI's own servers.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None  # of a custom tool's input
    tools: list[Tool] | None = None
    server_label: Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")] | None = None
    server_url: str | None = None
    server_description: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None
    allowed_callers: list[str] | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    defer_loading: bool | None = None


# Of the function that stands for a custom tool.
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "maxLength": 100_000}},
    "required": ["input"],
    "additionalProperties": False,
}


class NamedTool(msgspec.Struct, omit_defaults=True):
    type: str
    name: str | None = None
    server_label: str | None = None
    mode: Literal["auto", "required"] | None = None  # of type allowed_tools, as `tools` are
    tools: list[NamedTool] | None = None


class ResponseBody(TierFields, kw_only=True):
    input: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS)]
    background: bool | None = None
    conversation: str | Reference | None = None
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None  # of MCP servers; functions are the client's to call
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None  # told again in the answer, as the next one is
    reasoning: ReasoningOptions | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    text: TextOptions | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    tools: list[Tool] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None


class CompactBody(msgspec.Struct, kw_only=True):
    """A conversation that is to be compacted; one of `input` and `previous_response_id` is there."""

    model: ModelName | None = None
    input: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS - 1)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


class MetadataBody(msgspec.Struct):
    metadata: Metadata | None


class ItemsBody(msgspec.Struct):
    items: AddedItems


class ConversationBody(msgspec.Struct):
    items: AddedItems | None = None
    metadata: Metadata | None = None


decoder = fields.decoder(ResponseBody, UNSUPPORTED)
compact_decoder = msgspec.json.Decoder(CompactBody)
