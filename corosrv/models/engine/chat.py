"""Messages to prompt, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.contracts.jobs import Messages
from corosrv.formats.callformats.learn_answer import Rendering
from corosrv.models.engine.jinja_template import JinjaTemplate, adapt, reads_parts
from corosrv.models.engine.marks import BuiltinTemplate, Guard, Marks, Piece, builtin_name, strings
from corosrv.models.engine.sandbox import TemplateLimits
from corosrv.models.engine.template_trial import TemplateFindings
from corosrv.models.engine.tool_text import Message, write_tools
from corosrv.models.engine.traits import Traits, find_traits

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
