"""Parses the bodies of Anthropic's messages to calls: messages and their blocks become turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Image, Messages, ModelCard
from corosrv.dialects.anthropic import schema
from corosrv.dialects.anthropic.answers import MessageAnswer
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import (
    PART_END,
    CallMode,
    CallPolicy,
    Content,
    Conversation,
    JsonFormat,
    Part,
    ToolPlaces,
    Turn,
    TurnList,
    check_count,
    join,
    misplaced_image,
)
from corosrv.dialects.chat.prepare import prepare
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import Call
from corosrv.formats.bodies import convert
from corosrv.images.intake import ImageIntake

Blocks = Sequence[schema.Block]


def turns(body: schema.PromptBody, images: ImageIntake | None = None) -> tuple[Turn, ...]:
    """Returns the turns of a conversation, the system prompt first. Waits for images.

    `images` is None where the model takes none. Raises Refused, which names the place.
    """
    history = TurnList()
    takes_images = images is not None
    if images is not None:
        images.expect(sum(_n_images(message.content) for message in body.messages), "messages")
    if body.system is not None:
        history.say("system", _text(body.system, "system", takes_images))
    for i, message in enumerate(body.messages):
        content = [schema.TextBlock(message.content)] if isinstance(message.content, str) else message.content
        param = f"messages[{i}].content"
        if message.role == "user":
            _theirs(content, param, history, images)
        elif message.role == "assistant":
            _ours(content, param, history, takes_images)
        else:
            history.say("system", _text(content, param, takes_images))
    return history.all


def _n_images(content: str | Blocks) -> int:
    """Counts the images of a message, those in results of tools among them."""
    if isinstance(content, str):
        return 0
    results = (_n_images(block.content) for block in content if isinstance(block, schema.ToolResult))
    return sum(isinstance(block, schema.ImageBlock) for block in content) + sum(results)


def _ours(content: Blocks, param: str, history: TurnList, takes_images: bool) -> None:
    """Adds one turn of the assistant, with its thoughts, text and calls."""
    history.close()
    words, thoughts = [], []
    for i, block in enumerate(content):
        if isinstance(block, schema.Thinking):
            thoughts.append(block.thinking)
        elif not isinstance(block, (schema.ToolUse, schema.RedactedThinking)):
            words.append(_words(block, f"{param}[{i}]", takes_images))
    if thoughts:
        history.think("".join(thoughts))
    history.answer(PART_END.join(words))
    for block in content:
        if isinstance(block, schema.ToolUse):
            history.call(block.id, block.name, block.input)


def _theirs(content: Blocks, param: str, history: TurnList, images: ImageIntake | None) -> None:
    """Adds a turn for each tool result, and one turn for the rest."""
    parts: list[Part] = []
    for i, block in enumerate(content):
        if isinstance(block, schema.ToolResult):
            result = _result(block, f"{param}[{i}].content", images)
            history.result(block.tool_use_id, result, f"{param}[{i}].tool_use_id")
        else:
            parts.append(_part(block, f"{param}[{i}]", images))
    if parts or not content:
        history.say("user", join(parts))


def _result(block: schema.ToolResult, param: str, images: ImageIntake | None) -> Content:
    blocks = [schema.TextBlock(block.content)] if isinstance(block.content, str) else block.content
    content = join(_part(part, f"{param}[{i}]", images) for i, part in enumerate(blocks))
    if not block.is_error:
        return content
    # Templates know no flag for it: a model reads it in the words.
    return f"Error: {content}" if isinstance(content, str) else ("Error: ", *content)


def _part(block: schema.Block, param: str, images: ImageIntake | None) -> Part:
    if isinstance(block, schema.ImageBlock) and images is not None:
        return _image(block, f"{param}.source", images)
    return _words(block, param, images is not None)


def _image(block: schema.ImageBlock, param: str, images: ImageIntake) -> Image:
    source = convert(block.source, schema.ImageSource, param)
    if source.type == "file":
        raise NotSupported(f"{param}.type: no files are kept here: send the image itself", f"{param}.type")
    if source.type == "base64" and source.data is not None:
        return images.from_base64(source.data, f"{param}.data")
    if source.type == "url" and source.url is not None:
        return images.from_url(source.url, f"{param}.url")
    place = f"{param}.{'data' if source.type == 'base64' else 'url'}"
    raise Refused(f"{place} is required", place, "missing_required_parameter")


def _text(content: str | Blocks, param: str, takes_images: bool) -> str:
    if isinstance(content, str):
        return content
    return PART_END.join(_words(block, f"{param}[{i}]", takes_images) for i, block in enumerate(content))


def _words(block: schema.Block, param: str, takes_images: bool) -> str:
    if isinstance(block, schema.TextBlock):
        return block.text
    if isinstance(block, schema.Document):
        return _document(block, param, takes_images)
    if isinstance(block, schema.SearchResult):
        return _search_result(block, param)
    kind = block.__struct_config__.tag
    if isinstance(block, schema.ImageBlock):
        if takes_images:
            raise misplaced_image(param, "messages of the user and results of tools")
        raise NotSupported(f"{param}: this model reads text only, no {kind}", param, "unsupported_content")
    raise Refused(f"{param}: a block of type '{kind}' does not belong here", param)


def _document(document: schema.Document, param: str, takes_images: bool) -> str:
    _check_citations(document.citations, param)
    text = _document_text(document.source, f"{param}.source", takes_images)
    return _tagged("document", {"title": document.title, "context": document.context}, text)


def _search_result(result: schema.SearchResult, param: str) -> str:
    _check_citations(result.citations, param)
    text = PART_END.join(block.text for block in result.content)
    return _tagged("search_result", {"title": result.title, "source": result.source}, text)


def _check_citations(citations: schema.Citations | None, param: str) -> None:
    if citations is not None and citations.enabled:
        raise NotSupported(f"{param}.citations: citations are not offered here", f"{param}.citations")


def _tagged(kind: str, facts: Mapping[str, str | None], text: str) -> str:
    """Writes a text and what is said about it between tags, which tell it from what the user says."""
    lines = [f"<{tag}>{words}</{tag}>" for tag, words in facts.items() if words]
    return "\n".join((f"<{kind}>", *lines, text, f"</{kind}>"))


def _document_text(source: schema.Source, param: str, takes_images: bool) -> str:
    if isinstance(source, schema.TextSource):
        return source.data
    if isinstance(source, schema.ContentSource):
        return _text(source.content, f"{param}.content", takes_images)
    kind = source.__struct_config__.tag
    raise NotSupported(
        f"{param}.type: documents of type 'text' and 'content' are read here, not '{kind}'",
        f"{param}.type",
        "unsupported_content",
    )


_PLACES = ToolPlaces("tools[{}].name", "tools[{}].input_schema")
_CHOICES = {"auto": CallMode.AUTO, "any": CallMode.REQUIRED, "tool": CallMode.REQUIRED, "none": CallMode.NONE}


def call(body: schema.PromptBody, card: ModelCard, request_id: str, images: ImageIntake | None = None) -> Call:
    """Checks a request and makes its job and its answer; waits for images. Raises Refused, naming the parameter."""
    job, parser = prepare(_conversation(body, card, images), card)
    stream = bool(body.stream)
    # A stream begins with the number of the prompt's tokens, which the first progress chunk has.
    answer = MessageAnswer(card, parser, request_id, omits_thoughts=_omits_thoughts(body.thinking))
    job = replace(job, tells_progress=stream)
    return Call(job, stream, answer, body.priority, card=card, ping_interval=body.sse_ping_interval)


def _conversation(body: schema.PromptBody, card: ModelCard, images: ImageIntake | None) -> Conversation:
    job = fields.job(body, (_prompt(body, images),), card.defaults)
    choice = body.tool_choice
    return Conversation(
        replace(job, stop=job.stop + fields.stops(body.stop_sequences, "stop_sequences")),
        tool_choice=_tool_choice(choice),
        parallel_calls=choice is None or not choice.disable_parallel_tool_use,
        answer_format=_format(body),
        places=_PLACES,
        thinks=_thinks(body.thinking),
        thought_tokens=body.thinking.budget_tokens if body.thinking else None,
    )


def _prompt(body: schema.PromptBody, images: ImageIntake | None) -> Messages:
    history = turns(body, images)
    # A last message of the assistant is the beginning of the answer, which the model continues.
    is_begun = history[-1]["role"] == "assistant"
    if is_begun and "tool_calls" in history[-1]:
        raise Refused("messages: a tool_use at the end needs its tool_result in a user message", "messages")
    check_count(body.tools or ())
    tools = tuple(_tool(tool, i) for i, tool in enumerate(body.tools or ()))
    return Messages(history, tools=tools, add_generation_prompt=not is_begun, continue_final=is_begun)


def _tool(tool: schema.Tool, number: int) -> dict[str, Any]:
    param = f"tools[{number}]"
    if tool.type not in (None, "custom"):
        raise NotSupported(f"{param}.type: only 'custom' is offered here, not {tool.type[:40]!r}", f"{param}.type")
    if tool.input_schema is None:
        raise Refused(f"{param}.input_schema is required", f"{param}.input_schema", "missing_required_parameter")
    return conversation.tool(tool.name, tool.description, tool.input_schema)


def _tool_choice(choice: schema.ToolChoice | None) -> CallPolicy:
    if choice is None:
        return CallPolicy()
    if choice.type == "tool" and choice.name is None:
        raise Refused("tool_choice.name is required", "tool_choice.name", "missing_required_parameter")
    return CallPolicy(_CHOICES[choice.type], choice.name if choice.type == "tool" else None)


def _format(body: schema.PromptBody) -> JsonFormat | None:
    if body.output_config is not None and body.output_config.format is not None:
        return JsonFormat(body.output_config.format.schema, "output_config.format.schema")
    if body.output_format is not None:
        return JsonFormat(body.output_format.schema, "output_format.schema")
    return None


def _omits_thoughts(thinking: schema.ThinkingOptions | None) -> bool:
    return thinking is not None and thinking.display == "omitted"


def _thinks(thinking: schema.ThinkingOptions | None) -> bool | None:
    if thinking is None or thinking.type == "adaptive":
        return None
    return thinking.type == "enabled"
