"""The body of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.dialects.generation import fields
from corosrv.dialects.generation.fields import ModelName
from corosrv.dialects.openai.structured_fields import FormFields

MAX_MESSAGES = 2048
MAX_PARTS = 2048  # of one message

TopLogprobs = Annotated[int, Meta(ge=0, le=20)]

UNSUPPORTED: fields.Neutral = {
    **fields.EVERYWHERE,
    "audio": (),
    "ebnf": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "regex": (),
    "suffix": ("",),
    "web_search_options": (),
}


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any]  # as text, as OpenAI sends it, or as a value


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    """One turn; its content is checked by hand, because what is allowed depends on the role."""

    role: str
    content: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_PARTS)] | msgspec.UnsetType | None = (
        msgspec.UNSET
    )
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct, tag="function"):
    function: FunctionName


class AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class AllowedChoice(msgspec.Struct, tag="allowed_tools"):
    """Some of the tools, of which alone the model may or has to call some; it is shown no others."""

    allowed_tools: AllowedTools


class PredictedText(msgspec.Struct):
    type: Literal["text"]
    text: str


class PredictedOutput(msgspec.Struct):
    """The text that much of the answer is expected to be, in one piece or several. No answer depends on it."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedText], Meta(max_length=MAX_PARTS)]


class ChatBody(FormFields, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    echo: bool | None = None  # the answer has the beginning of the message that it continues
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    prediction: PredictedOutput | None = None
    reasoning_control: Annotated[
        bool | None, Meta(description="`/v1/chat/completions/control` may end the thoughts while they are written")
    ] = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class ControlBody(msgspec.Struct):
    """Asks for something to be done to a chat that is being answered."""

    id: Annotated[
        str, Meta(min_length=1, max_length=256, description="of the answer, as each chunk of a stream has it")
    ]
    action: Literal["reasoning_end"]
    model: ModelName | None = None  # nothing depends on it: the id says which


decoder = fields.decoder(ChatBody, UNSUPPORTED)
control_decoder = msgspec.json.Decoder(ControlBody)
