"""Converts messages and their blocks to turns."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.anthropic import schema
from corosrv.chat.turns import PART_END, Turn, TurnList
from corosrv.errors import NotSupported, Refused

Blocks = Sequence[schema.Block]


def turns(body: schema.PromptBody) -> tuple[Turn, ...]:
    """Returns the turns of a conversation, the system prompt first. Raises Refused, which names the place."""
    history = TurnList()
    if body.system is not None:
        history.say("system", _text(body.system, "system"))
    for i, message in enumerate(body.messages):
        content = [schema.TextBlock(message.content)] if isinstance(message.content, str) else message.content
        _ADD[message.role](content, f"messages[{i}].content", history)
    return history.all


def _ours(content: Blocks, param: str, history: TurnList) -> None:
    """Adds one turn of the assistant, with its thoughts, text and calls."""
    history.close()
    words, thoughts = [], []
    for i, block in enumerate(content):
        if isinstance(block, schema.Thinking):
            thoughts.append(block.thinking)
        elif not isinstance(block, (schema.ToolUse, schema.RedactedThinking)):
            words.append(_words(block, f"{param}[{i}]"))
    if thoughts:
        history.think("".join(thoughts))
    history.answer(PART_END.join(words))
    for block in content:
        if isinstance(block, schema.ToolUse):
            history.call(block.id, block.name, block.input)


def _theirs(content: Blocks, param: str, history: TurnList) -> None:
    """Adds a turn for each tool result, and one turn for the rest."""
    words: list[str] = []
    for i, block in enumerate(content):
        if isinstance(block, schema.ToolResult):
            text = _text(block.content, f"{param}[{i}].content")
            # Templates know no flag for it: a model reads it in the words.
            text = f"Error: {text}" if block.is_error else text
            history.result(block.tool_use_id, text, f"{param}[{i}].tool_use_id")
        else:
            words.append(_words(block, f"{param}[{i}]"))
    if words or not content:
        history.say("user", PART_END.join(words))


def _operators(content: Blocks, param: str, history: TurnList) -> None:
    history.say("system", _text(content, param))


_ADD = {"assistant": _ours, "user": _theirs, "system": _operators}


def _text(content: str | Blocks, param: str) -> str:
    if isinstance(content, str):
        return content
    return PART_END.join(_words(block, f"{param}[{i}]") for i, block in enumerate(content))


def _words(block: schema.Block, param: str) -> str:
    if isinstance(block, schema.TextBlock):
        return block.text
    if isinstance(block, schema.Document):
        return _document(block, param)
    kind = block.__struct_config__.tag
    if isinstance(block, schema.ImageBlock):
        raise NotSupported(f"{param}: this model reads text only, no {kind}", param, "unsupported_content")
    raise Refused(f"{param}: a block of type '{kind}' does not belong here", param)


def _document(document: schema.Document, param: str) -> str:
    """Writes a document of text between tags, which tell it from what the user says."""
    if document.citations is not None and document.citations.enabled:
        raise NotSupported(f"{param}.citations: citations are not offered here", f"{param}.citations")
    lines = ["<document>"]
    for tag, text in (("title", document.title), ("context", document.context)):
        if text:
            lines.append(f"<{tag}>{text}</{tag}>")
    return "\n".join((*lines, _document_text(document.source, f"{param}.source"), "</document>"))


def _document_text(source: schema.Source, param: str) -> str:
    if isinstance(source, schema.TextSource):
        return source.data
    if isinstance(source, schema.ContentSource):
        return _text(source.content, f"{param}.content")
    kind = source.__struct_config__.tag
    raise NotSupported(
        f"{param}.type: documents of type 'text' and 'content' are read here, not '{kind}'",
        f"{param}.type",
        "unsupported_content",
    )
