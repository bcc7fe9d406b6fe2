"""Messages to prompt, by the model's own chat template.

What the template would drop is written into the messages first: tools, calls, results, system turns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.contracts.jobs import Messages
from corosrv.formats.callformats.description import HERMES, ArgumentRow, CallFormat, Spelling
from corosrv.formats.callformats.learn_answer import Rendering
from corosrv.formats.callformats.writer import WrittenCall, write_calls
from corosrv.models.engine.jinja_template import JinjaTemplate, adapt, reads_parts
from corosrv.models.engine.marks import BuiltinTemplate, Guard, Marks, Piece, builtin_name, strings
from corosrv.models.engine.sandbox import TemplateLimits
from corosrv.models.engine.template_trial import TemplateFindings
from corosrv.models.engine.traits import Traits, find_traits

Message = dict[str, Any]

_INTRODUCTION = (
    "# Tools\n\nYou may call functions to answer. Each line between <tools> and </tools> describes one, with a JSON "
    "schema of its arguments:\n<tools>\n{tools}\n</tools>\n\nTo call one, write its name and its arguments {how}:\n"
    "{example}"
)
_HERMES_EXAMPLE = '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'


def write_tools(
    messages: list[Message], tools: list[dict[str, Any]], traits: Traits
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Returns messages and tools that the template shows in full. The strings in them are left as they are."""
    if not traits.shows_tools and tools:
        messages = _with_system_words(messages, _introduction(tools, traits.call_format))
        tools = []
    if traits.shows_calls and not traits.manner.takes_text:
        messages = _without_cut_calls(messages, traits)
    messages = [_adapt_calls(message, traits) for message in messages]
    if not traits.shows_results:
        messages = _results_as_turns(messages)
    if not traits.has_system:
        messages = _without_system(messages)
    return messages, tools


def _introduction(tools: list[dict[str, Any]], form: CallFormat) -> str:
    lines = "\n".join(map(_json, tools))
    if form == HERMES:
        how = "as a JSON object between <tool_call> and </tool_call>"
        return _INTRODUCTION.format(tools=lines, how=how, example=_HERMES_EXAMPLE)
    example = write_calls(form, [WrittenCall("function_name", {"argument_name": "value"})])
    return _INTRODUCTION.format(tools=lines, how="in this form", example=example)


def _with_system_words(messages: list[Message], words: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def _without_cut_calls(messages: list[Message], traits: Traits) -> list[Message]:
    """Writes calls whose arguments are no object into the text, for a template that takes objects alone.

    These are calls that were cut off in the middle. All calls of such a message go, so that their order stays, and
    their results become turns of the user.
    """
    written_ids: set[str] = set()
    remaining = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if any(isinstance(call["function"]["arguments"], str) for call in calls):
            written_ids |= {call["id"] for call in calls}
            message = _with_calls_in_text(message, traits.call_format)
        remaining.append(message)
    return _results_as_turns(remaining, written_ids) if written_ids else messages


def _adapt_calls(message: Message, traits: Traits) -> Message:
    """Returns a message with its thoughts and calls as the template takes them, or calls in the text."""
    manner = traits.manner
    if manner.short_ids and "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    member = traits.answer.thought_member
    calls = message.get("tool_calls")
    if member not in message and "reasoning_content" in message and not (calls and message.get("content")):
        message = {**message, member: message["reasoning_content"]}
    if not calls:
        return message
    if not traits.shows_calls:
        return _with_calls_in_text(message, traits.call_format)
    content = message.get("content") or manner.content
    return {**message, "content": content, "tool_calls": [_adapt_call(call, traits) for call in calls]}


def _adapt_call(call: dict[str, Any], traits: Traits) -> dict[str, Any]:
    function, manner = call["function"], traits.manner
    if manner.takes_text:
        function = {**function, "arguments": _arguments_text(function["arguments"])}
    elif _spells_containers(traits.call_format):
        arguments = {
            name: _json(value) if isinstance(value, (dict, list)) else value
            for name, value in function["arguments"].items()
        }
        function = {**function, "arguments": arguments}
    return {**call, "id": _short_id(call["id"]) if manner.short_ids else call["id"], "function": function}


def _spells_containers(form: CallFormat) -> bool:
    """Returns whether a template writes objects and arrays as Python does: its model is asked for JSON."""
    members = form.arguments
    return isinstance(members, ArgumentRow) and members.containers is Spelling.PYTHON and not members.quote


def _short_id(name: str) -> str:
    """Returns the same nine characters for the same id."""
    return name if len(name) == 9 and name.isalnum() else hashlib.sha256(name.encode()).hexdigest()[:9]


def _with_calls_in_text(message: Message, form: CallFormat) -> Message:
    """Moves the calls of a message to the end of its text, written in this form."""
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = write_calls(form, [_call_to_write(call, form) for call in message["tool_calls"]])
    return {**others, "content": "\n".join((*filter(None, [message.get("content")]), calls))}


def _call_to_write(call: dict[str, Any], form: CallFormat) -> WrittenCall:
    function = call["function"]
    return WrittenCall(function["name"], function["arguments"], _short_id(call["id"]) if form.short_ids else call["id"])


def _arguments_text(arguments: dict[str, Any] | str) -> str:
    """Returns the JSON text of a call's arguments; of a call that was cut off, what there is of it."""
    return arguments if isinstance(arguments, str) else _json(arguments)


def _results_as_turns(messages: list[Message], ids: Container[str] | None = None) -> list[Message]:
    """Makes results turns of the user, all of them or those of the calls with these ids.

    Results behind each other, and what the user says then, are one turn.
    """
    turns: list[Message] = []
    is_open = False  # the last turn is made of results
    for message in messages:
        is_result = message["role"] == "tool" and (ids is None or message["tool_call_id"] in ids)
        text = f"<tool_response>\n{message['content']}\n</tool_response>" if is_result else message.get("content", "")
        if is_open and (is_result or message["role"] == "user"):
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{text}"}
        else:
            turns.append({"role": "user", "content": text} if is_result else message)
        is_open = is_result
    return turns


def _without_system(messages: list[Message]) -> list[Message]:
    """Puts the system's text before that of the next turn, as llama-server does."""
    if not messages or messages[0]["role"] != "system":
        return messages
    words, following = messages[0]["content"], messages[1:]
    if not following:
        return [{"role": "user", "content": words}]
    return [{**following[0], "content": f"{words}\n{following[0].get('content', '')}"}, *following[1:]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# For models that carry none, as in llama-server: they may have been trained on anything, and most have seen this.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts_of(prompt: Messages) -> list[str]:
    """Returns all strings of a conversation, at any depth, names included."""
    return strings((prompt.messages, prompt.tools, prompt.template_arguments))


class ChatTemplate:
    """One model's template: Jinja's, or one that libllama has built in. Rendering computes, and never waits."""

    def __init__(
        self,
        source: str,
        control_markers: Iterable[str],
        special: dict[str, str],
        limits: TemplateLimits | None = None,
        arguments: Mapping[str, Any] | None = None,
        end_texts: Sequence[str] = (),
        hidden_texts: Sequence[str] = (),
        findings: TemplateFindings | None = None,
    ) -> None:
        """`source`: the template's text, or the name of a built-in one; `control_markers`: texts of control tokens;
        `special`: what templates know as bos_token and so on.

        `arguments`: what the template is told where a conversation does not say it; `end_texts`: of the tokens
        that end an answer; `hidden_texts`: of those that add nothing to its text unless
        they are asked to; `findings`: of the template's trial, else it is tried here. Raises Refused.
        """
        self.source = source
        self._guard = Guard(control_markers)
        self._arguments = {"enable_thinking": True, **(arguments or {})}
        name = builtin_name(source)
        template = BuiltinTemplate(name) if name else JinjaTemplate(source, special, limits or TemplateLimits())
        takes_parts = reads_parts(template.render) if findings is None else findings.reads_parts
        self._render: Rendering = adapt(template.render, takes_parts)
        self.traits: Traits = (
            find_traits(source, self._render, end_texts, hidden_texts) if findings is None else findings.traits
        )

    def render(self, prompt: Messages, texts: Sequence[str] | None = None) -> list[Piece]:
        """Renders the prompt as pieces, in order. Raises Refused when the template refuses the conversation.

        `texts`: what texts_of() returns for the prompt, where that is known already.
        """
        conversation: list[Any] = [list(prompt.messages), list(prompt.tools), prompt.template_arguments]
        if texts is None:
            texts = texts_of(prompt)
        marks = Marks.free_in(texts)
        if self._guard.finds_markers(texts):
            conversation = self._guard.guarded(conversation, marks)
        messages: list[Message]
        messages, tools = write_tools(conversation[0], conversation[1], self.traits)
        render = self._render_thoughts if prompt.continue_thoughts else self._render
        if prompt.continue_thoughts:
            thoughts = messages[-1]["reasoning_content"] + marks.end
            messages[-1] = {**messages[-1], "reasoning_content": thoughts, self.traits.answer.thought_member: thoughts}
        elif prompt.continue_final:
            messages[-1] = {**messages[-1], "content": messages[-1].get("content", "") + marks.end}
        arguments = {**self._arguments, **conversation[2]}
        if arguments["enable_thinking"] is False:
            arguments.setdefault("thinking", False)  # the name that some templates have for it
        if tools:
            arguments["tools"] = tools
        try:
            rendered = render(messages, add_generation_prompt=prompt.add_generation_prompt, **arguments)
        except Refused as error:
            error.param = prompt.param
            raise
        if prompt.continue_final:
            rendered, end, _ = rendered.partition(marks.end)
            if not end:
                raise Refused("the model's chat template drops the message that is to be continued", prompt.param)
        elif prompt.add_generation_prompt and arguments["enable_thinking"] is False:
            rendered += self._closed_thoughts(rendered)
        return list(marks.pieces(rendered))

    def _render_thoughts(self, messages: list[Message], **arguments: Any) -> str:
        """Renders messages of which the last one has thoughts alone, also where the template shows none."""
        thoughts, answer = messages[-1]["reasoning_content"], self.traits.answer
        if not answer.opens_thoughts:
            try:
                rendered = self._render(messages, **arguments)
            except TemplateTooCostly:
                raise
            except Refused:  # some templates take no message without a text
                rendered = ""
            if thoughts.strip() in rendered:
                return rendered
        opening, _ = self.traits.thought_tags or ("", "")
        rendered = self._render(messages[:-1], **{**arguments, "add_generation_prompt": True})
        is_open = rendered.rstrip().endswith(opening)
        return rendered + ("" if is_open else opening + answer.thought_space) + str(thoughts)

    def _closed_thoughts(self, rendered: str) -> str:
        """Returns the text that ends the thoughts a prompt leaves open, or that says there are none."""
        answer = self.traits.answer
        if self.traits.thought_tags is None or not answer.can_be_silenced or answer.tells_no_thoughts:
            return ""
        opening, closing = self.traits.thought_tags
        end = rendered.rstrip()
        if end.endswith(closing):
            return ""
        return f"\n{closing}\n\n" if end.endswith(opening) else f"{opening}\n\n{closing}\n\n"
