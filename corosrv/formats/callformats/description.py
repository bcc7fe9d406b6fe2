"""Describes how a model writes calls: the texts around names and arguments, and how arguments are written.

Texts are compared to find what they share at the beginning or the end; they are never cut inside a tag. At the end
stand formats described by hand: that of models without one of their own, and those that no probe shows in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

import msgspec

_PAIRS = (("<", ">"), ("[", "]"))


def shared_start(*texts: str) -> str:
    """Returns what all texts begin with, up to the beginning of a tag that they share a part of."""
    start = _common(*texts)
    for opening, closing in _PAIRS:
        at = start.rfind(opening)
        if at > start.rfind(closing) and any(_is_tag(text[at:], closing) for text in texts):
            start = start[:at]
    return start


def shared_end(*texts: str) -> str:
    """Returns what all texts end with, from the end of a tag that they share a part of."""
    end = _common(*(text[::-1] for text in texts))[::-1]
    closing = end.find(">")
    if closing >= 0 and not 0 <= end.find("<") < closing:
        return end[closing + 1 :]
    return end


def _common(*texts: str) -> str:
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in same)


def _is_tag(text: str, closing: str) -> bool:
    return 0 < text.find(closing) < 64


def between(text: str, start: str, end: str) -> str:
    """Returns the middle of a text, without these edges."""
    return text[len(start) : len(text) - len(end)]


class CallField(Enum):
    """Names what differs from one call to the next."""

    NAME = "the name of the function"
    ID = "the id of the call"
    INDEX = "the number of the call in the answer"
    ARGUMENTS = "the arguments"


class Spelling(Enum):
    """Says how values that are no strings are written."""

    JSON = "json"
    PYTHON = "python"


_PYTHON_QUOTES = ("'", '"')


class ArgumentRow(msgspec.Struct, frozen=True, tag=True):
    """Arguments as a row of keys and values, each between texts of its own.

    One argument is `key`, `key_end`, the word of its type where there is one, `value_start`, the value, `value_end`.
    """

    opening: str  # before the first key
    key_end: str
    value_start: str
    value_end: str
    between: str  # from a value's end to the next key
    closing: str  # after the end of the last value
    type_words: tuple[tuple[str, str], ...] = ()  # (JSON type, word); (): values do not tell their types
    quote: str = ""  # around strings; "": they stand bare, and end where `value_end` begins
    constants: Spelling = Spelling.JSON  # true, false and null
    containers: Spelling = Spelling.JSON  # objects and arrays
    sorts_keys: bool = False

    @property
    def quotes(self) -> tuple[str, ...]:
        """Returns all quotes that strings may have: of Python's two, models write either."""
        if self.quote in _PYTHON_QUOTES:
            return _PYTHON_QUOTES
        return (self.quote,) if self.quote else ()

    def type_word(self, json_type: str) -> str:
        """Returns the word that values of a JSON type have."""
        return dict(self.type_words).get(json_type, "")


class Notation(msgspec.Struct, frozen=True, tag=True):
    """Arguments as JSON but for the quotes: keys stand bare, strings between other quotes."""

    quote: str
    sorts_keys: bool = False


class ElementTree(msgspec.Struct, frozen=True, tag=True):
    """Arguments as elements that have their names: objects and lists are elements in elements, all else is text."""

    mark: str  # before each tag
    item: str  # the name of the elements of a list


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The texts of calls: `start`, the fields with `inner` between them, `joint` before each further call, `end`."""

    start: str  # before the first field of the first call
    end: str  # after the last field of the last call
    joint: str  # from the last field of a call to the first field of the next; "" where there is no next
    fields: tuple[CallField, ...] = (CallField.NAME, CallField.ARGUMENTS)
    inner: tuple[str, ...] = ("",)  # between the fields
    arguments: ArgumentRow | Notation | ElementTree | None = None  # None: one JSON object
    markers: tuple[str, ...] = ()  # a text that has one of these goes on with a call
    trailer: str = ""  # that may follow the end
    # Pairs that may stand instead of `start` and the last of `inner`, each pair together.
    variants: tuple[tuple[str, str], ...] = ()
    lead_ins: tuple[str, ...] = ()  # one of which may stand before a call, and is no part of it
    lead: str = ""  # the beginning of `start` that may be missing
    is_alone: bool = False  # markers count where an answer begins, and a call is all of it
    first_index: int = 0  # of the calls of an answer
    short_ids: bool = False  # ids have nine letters or digits

    @property
    def is_single(self) -> bool:
        """Returns whether an answer has one call at most."""
        return not self.joint

    @property
    def repeats(self) -> bool:
        """Returns whether calls follow each other as if each were the only one."""
        return not self.is_single and self.joint.split() == (self.end + " " + self.start).split()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Returns all pairs of texts before the first field and before the arguments that may stand together."""
        return ((self.start, self.inner[len(self.before_arguments) - 1]), *self.variants)

    @property
    def before_arguments(self) -> tuple[CallField, ...]:
        return self.fields[: self.fields.index(CallField.ARGUMENTS)]

    @property
    def after_arguments(self) -> tuple[CallField, ...]:
        return self.fields[self.fields.index(CallField.ARGUMENTS) + 1 :]

    @property
    def texts(self) -> str:
        """Returns all texts of the format, in which control tokens of the model may stand."""
        texts = [self.start, self.end, self.joint, self.trailer, *self.lead_ins, *self.inner]
        texts += [text for pair in self.variants for text in pair]
        if isinstance(self.arguments, ArgumentRow):
            members = self.arguments
            texts += [members.opening, members.key_end, members.value_start, members.value_end, members.between]
            texts.append(members.closing)
        elif isinstance(self.arguments, Notation):
            texts.append(self.arguments.quote)
        elif isinstance(self.arguments, ElementTree):
            texts.append(self.arguments.mark)
        return " ".join(texts)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The texts around thoughts, and those that are no part of the text that follows."""

    thought_tags: tuple[str, str] | None = None
    thought_space: str = ""  # white space between the first of them and the thoughts
    opens_thoughts: bool = False  # the prompt ends inside them, unless it is told not to think
    tells_no_thoughts: bool = False  # the template itself writes what keeps the model from thinking
    turn: str = ""  # between thoughts and text, and between thoughts and calls
    text_opening: str = ""  # before the text
    text_closing: str = ""  # behind it
    preamble_edges: tuple[str, ...] = ()  # around text before calls, that has marks of its own
    thought_member: str = "reasoning_content"  # of a message, that the template takes thoughts from

    @property
    def texts(self) -> str:
        """Returns all texts around thoughts and text, in which control tokens of the model may stand."""
        return " ".join((*(self.thought_tags or ()), self.turn, self.text_opening, self.text_closing))

    @property
    def can_be_silenced(self) -> bool:
        """Returns whether a prompt can keep the model from thinking."""
        return self.tells_no_thoughts or not self.turn

    @property
    def edges(self) -> tuple[str, ...]:
        """Returns what may stand around an answer's text, the longest first."""
        text = (self.turn + self.text_opening, self.turn, self.text_opening, self.text_closing)
        return (*self.preamble_edges, *filter(None, text))


BARE = AnswerFormat()


def with_markers(form: CallFormat) -> CallFormat:
    """Returns the format with the markers that its first text offers."""
    start = form.start
    if start.startswith("{"):
        return replace(form, markers=(start.rstrip(' "'),), is_alone=True)
    first = _first_tag(start)
    rest = start[len(first) :].strip()
    if first and (rest.startswith('[{"name') or (rest.startswith("<") and _CALL_WORD.search(rest))):
        return replace(form, lead=first, markers=(first, rest.rstrip('" ')))
    marker = first or start.rstrip(' "')
    return replace(form, markers=(marker,) if _CALL_WORD.search(marker) else ())


def markers_for(form: CallFormat, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the markers of calls of these tools: those of the format, or the names where it has none."""
    if form.markers:
        return form.markers
    opening = form.inner[0].rstrip() + ("\n{" if form.arguments is None else "")
    leads = (form.start,) if form.start else (form.joint, "")
    return tuple(f"{lead}{name}{opening}" for name in names for lead in leads)


_CALL_WORD = re.compile("tool|call|function|action", re.IGNORECASE)


def _first_tag(text: str) -> str:
    """Returns the beginning of a text up to the end of its first tag that speaks of calls."""
    ends = (match.end() for match in re.finditer(r"[>\]]", text))
    return next((text[:end] for end in ends if text[0] in "<[]" and _CALL_WORD.search(text[:end])), "")


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
