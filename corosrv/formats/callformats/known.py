"""Formats described by hand: that of models without one of their own, and those that no probe shows in full."""

from __future__ import annotations

from dataclasses import replace

from corosrv.formats.callformats.description import AnswerFormat, ArgumentRow, CallFormat, ElementTree, Spelling

# What most models have seen: it is written into the prompt of those whose templates show no calls.
HERMES = CallFormat(
    start='<tool_call>\n{"name": "',
    inner=('", "arguments": ',),
    joint='}\n</tool_call>\n<tool_call>\n{"name": "',
    end="}\n</tool_call>",
    markers=("<tool_call>",),
)
# Models write the lead or leave it out.
MISTRAL = CallFormat(
    start='[TOOL_CALLS][{"name": "',
    inner=('", "arguments": ',),
    joint='}, {"name": "',
    end="}]",
    lead="[TOOL_CALLS]",
    markers=("[TOOL_CALLS]", '[{"name":'),
)
LLAMA3 = CallFormat(
    start='{"name": "',
    inner=('", "parameters": ',),
    joint="",
    end="}",
    markers=('{"name":',),
    is_alone=True,
)
# LFM2 and LFM2.5, most of whose templates list tools and show no calls.
LFM2 = CallFormat(
    start="<|tool_call_start|>[",
    inner=("(",),
    joint="), ",
    end=")]<|tool_call_end|>",
    arguments=ArgumentRow("", "=", "", "", ", ", "", quote='"', constants=Spelling.PYTHON),
    markers=("<|tool_call_start|>",),
)
# Granite 3.3, whose template asks for calls and shows none.
GRANITE3 = CallFormat(
    start='<|tool_call|>[{"name": "',
    inner=('", "arguments": ',),
    joint='}, {"name": "',
    end="}]",
    markers=("<|tool_call|>",),
)
# MiniMax-M3, whose arguments are elements in elements: no probe shows them in full.
_MINIMAX_MARK = "]<]minimax[>["
MINIMAX3 = CallFormat(
    start=f'{_MINIMAX_MARK}<tool_call>\n{_MINIMAX_MARK}<invoke name="',
    inner=('">',),
    joint=f'{_MINIMAX_MARK}</invoke>\n{_MINIMAX_MARK}<invoke name="',
    end=f"{_MINIMAX_MARK}</invoke>\n{_MINIMAX_MARK}</tool_call>",
    arguments=ElementTree(_MINIMAX_MARK, "item"),
    markers=(f"{_MINIMAX_MARK}<tool_call>",),
)
_MINIMAX_THOUGHTS = ("<mm:think>", "</mm:think>")
# What templates that show no calls say of tools, and the format of their models.
_TOLD = (
    ("List of tools: <|tool_list_start|>[", LFM2),
    ("List of tools: [", LFM2),
    ("<|tool_call|> followed by a JSON list", GRANITE3),
)
# Granite 3.3 is asked to write its text between these when it thinks.
_RESPONSE_TAGS = ("<response>", "</response>")
# Models of this format write the channel before the name as often as behind it, and not always the same one. It stands
# in one of these places, never in both.
_CHANNELS = ("<|channel|>commentary", "<|channel|>analysis")
_HARMONY_START = "to=functions."
_HARMONY_KINDS = (" <|constrain|>json", " json", "")
_HARMONY_HEADERS = (
    *((_HARMONY_START, f"{channel}{kind}<|message|>") for channel in _CHANNELS for kind in _HARMONY_KINDS),
    *((f"{channel} {_HARMONY_START}", f"{kind}<|message|>") for channel in _CHANNELS for kind in _HARMONY_KINDS),
)
_HARMONY_THOUGHTS = "<|channel|>analysis<|message|>"
_PREAMBLE = "<|channel|>commentary<|message|>"
# What models write beside that: a final channel that names its form, and a channel addressed to themselves, or left
# empty.
_HARMONY_SLIPS = ("<|channel|>final <|constrain|>json<|message|>", "<|channel|>commentary to=assistant")
_EMPTY_CHANNEL = "<|channel|>commentary"


def told_calls(source: str) -> CallFormat | None:
    """Returns the format that a template without calls speaks of; None where it is not known. `source`: its text."""
    return next((form for words, form in _TOLD if words in source), None)


def shown_calls(rendered: str) -> CallFormat | None:
    """Returns the format of calls that a template shows in a way that is not learnt; None where it is not known."""
    return MINIMAX3 if MINIMAX3.start in rendered else None


def completed_answer(answer: AnswerFormat, source: str = "") -> AnswerFormat:
    """Returns a learnt format with what its template does not show. `source`: the template's text.

    That is the end of thoughts that a model has not begun, the channel in which it says something before it calls, and
    the tags around a text behind thoughts.
    """
    if "".join(_RESPONSE_TAGS) in source and not answer.preamble_edges:
        return replace(answer, preamble_edges=_RESPONSE_TAGS)
    if answer.thought_tags == _MINIMAX_THOUGHTS:
        return replace(answer, preamble_edges=(_MINIMAX_THOUGHTS[1],))
    if answer.thought_tags is None or answer.thought_tags[0] != _HARMONY_THOUGHTS:
        return answer
    slips = (*(answer.turn + slip for slip in _HARMONY_SLIPS), *_HARMONY_SLIPS)
    edges = (answer.turn + _PREAMBLE, _PREAMBLE, *slips, _EMPTY_CHANNEL, answer.thought_tags[1])
    return replace(answer, preamble_edges=edges)


def completed(form: CallFormat) -> CallFormat:
    """Completes a learnt format with what its template does not show."""
    if form.start == _HARMONY_START and "<|channel|>" in form.inner[-1]:
        variants = tuple(header for header in _HARMONY_HEADERS if header not in form.headers)
        return replace(form, variants=variants, markers=tuple(dict.fromkeys(start for start, _ in _HARMONY_HEADERS)))
    return form
