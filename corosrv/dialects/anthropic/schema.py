"""Defines the bodies of message requests and of batches of them, and the blocks of their content."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.dialects.generation import fields
from corosrv.dialects.generation.fields import GenerationFields
from corosrv.dialects.openai.batches.lines import MOST_LINES

MAX_MESSAGES = 2048

# What Anthropic offers beyond the model itself; `cache_control` and the like steer nothing here and are ignored.
UNSUPPORTED: fields.Neutral = {
    **fields.EVERYWHERE,
    **fields.NO_FORKS,
    "compaction": (),
    "container": (),
    "context_management": ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "return_progress": (False,),
    "speed": ("standard",),
    "thread": (),
}


class Block(msgspec.Struct, tag_field="type"):
    """A piece of content; its `type` says which."""


class TextBlock(Block, tag="text"):
    text: str


class ToolUse(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class Thinking(Block, tag="thinking"):
    thinking: str


class RedactedThinking(Block, tag="redacted_thinking"):
    """Another model's encrypted thoughts, which are left out here."""


class Source(msgspec.Struct, tag_field="type"):
    """The source of a document's content; its `type` says which kind."""


class TextSource(Source, tag="text"):
    data: str
    media_type: str = "text/plain"


class Base64Source(Source, tag="base64"):
    """Recognised only to refuse it by name."""


class UrlSource(Source, tag="url"):
    """Recognised only to refuse it by name."""


class FileSource(Source, tag="file"):
    """Recognised only to refuse it by name."""


class ImageSource(msgspec.Struct):
    """The source of an image, whose first bytes say what it is, whatever its media type."""

    type: Literal["base64", "url", "file"]
    data: str | None = None
    url: str | None = None


class ImageBlock(Block, tag="image"):
    """An image. Its source is an ImageSource, and is not looked at where images are refused."""

    source: Any = None


class ContentSource(Source, tag="content"):
    content: str | list[TextBlock | ImageBlock]


class Citations(msgspec.Struct):
    enabled: bool = False


class Document(Block, tag="document"):
    source: TextSource | ContentSource | Base64Source | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResult(Block, tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ToolResult(Block, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | Document | SearchResult] = ""
    is_error: bool = False


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: (
        str
        | list[TextBlock | ToolUse | ToolResult | Thinking | RedactedThinking | ImageBlock | Document | SearchResult]
    )


class Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingOptions(msgspec.Struct):
    """Options of thinking. Thoughts count towards max_tokens, as they do at Anthropic."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputOptions(msgspec.Struct):
    format: OutputFormat | None = None
    effort: str | None = None


class PromptBody(GenerationFields, kw_only=True):
    """A message whose tokens are to be counted; `max_tokens` is optional."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    stop_sequences: list[str] | None = None
    thinking: ThinkingOptions | None = None
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = None
    output_config: OutputOptions | None = None
    output_format: OutputFormat | None = None  # where output_config.format stood before


class MessageBody(PromptBody, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]


class BatchedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request of a batch, whose `params` are read when it runs."""

    custom_id: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: Annotated[
        msgspec.Raw,
        Meta(description="The body of a message, without `stream`", extra_json_schema={"type": "object"}),
    ]


class MessageBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body by which a batch of messages is made; no `custom_id` is in it twice."""

    requests: Annotated[list[BatchedRequest], Meta(min_length=1, max_length=MOST_LINES)]


class MessageBatchesQuery(msgspec.Struct):
    """Members of the query of a page of batches."""

    after_id: Annotated[str | None, Meta(description="The id of the batch before the page")] = None
    before_id: Annotated[str | None, Meta(description="The id of the batch behind the page")] = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


decoder = fields.decoder(MessageBody, UNSUPPORTED)
prompt_decoder = fields.decoder(PromptBody, UNSUPPORTED)
batch_decoder = msgspec.json.Decoder(MessageBatchBody)
