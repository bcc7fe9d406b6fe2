"""Makes patterns of the texts around calls, which leave models some freedom with white space.

`ThoughtCalls` finds a call that a model begins in its thoughts, without ending these first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from corosrv.dialects.chat.parts import Pattern, first_of, partial_match_at
from corosrv.formats.callformats.description import CallField, CallFormat, shared_end

GAP = r"\s*"
_NAME = r"[\w.-]*"
_FIELDS = {CallField.NAME: _NAME, CallField.ID: r"[^\s\"'<>|\[\]]*", CallField.INDEX: r"\d*"}
_NAME_END = r"(?=[^\w.\s-])"
_ID_MEMBER = [",", GAP, *'"id"', GAP, ":", GAP, '"', '[^"]*', '"', GAP]


def flexible(text: str) -> list[str]:
    """Returns the steps of a pattern for this text with any white space where it, or JSON, has some."""
    pieces: list[str] = []
    is_json = '"' in text or ("}" in text and not text.strip("{}[], \n"))
    for piece in re.findall(r"\s+|[{}\[\],:]|.", text, re.DOTALL):
        if piece.isspace():
            pieces.append(GAP)
        elif is_json and piece in "{}[],:":
            pieces += [GAP, re.escape(piece), GAP]
        else:
            pieces.append(re.escape(piece))
    return [piece for at, piece in enumerate(pieces) if piece != GAP or at == 0 or pieces[at - 1] != GAP]


class CallPatterns:
    """The patterns of everything in a call but its arguments. Group 1 of a head is the name."""

    def __init__(self, form: CallFormat) -> None:
        shared = shared_end(form.start, form.joint)
        self.first_heads = [Pattern(*_lead(form, start), *_fields(form, last)) for start, last in form.headers]
        self.next_heads = [
            Pattern(GAP, *flexible(shared.strip()), *_fields(form, last))
            for start, last in form.headers
            if start == form.start
        ]
        closing = form.joint[: len(form.joint) - len(shared)].strip()
        self.ends = [Pattern(GAP, *behind, *flexible(form.end.strip())) for behind in _after_arguments(form)]
        # The text before the next call, and the same with the beginning of that call.
        self.joints = [Pattern(GAP, *behind, *flexible(closing), GAP) for behind in _after_arguments(form)]
        self.whole_joints = [
            Pattern(GAP, *behind, *flexible(closing), GAP, *flexible(shared.strip()))
            for behind in _after_arguments(form)
        ]
        if form.is_single or form.repeats:
            self.joints = self.whole_joints = []


def first_match(patterns: Iterable[Pattern], text: str) -> re.Match[str] | None:
    """Returns the match of the first pattern that the text begins with."""
    return next((match for pattern in patterns if (match := pattern.match(text))), None)


def any_may_follow(patterns: Iterable[Pattern], text: str) -> bool:
    """Returns whether more text could make one of these patterns match."""
    return any(pattern.may_follow(text) for pattern in patterns)


def _optional(text: str) -> list[str]:
    return [f"(?:{re.escape(text.strip())})?"] if text.strip() else []


def _lead(form: CallFormat, start: str) -> list[str]:
    """Returns the steps of the text before the first field of the first call."""
    if not start:
        return [GAP, *_optional(form.joint)]
    lead = form.lead if start == form.start else ""
    return [GAP, *_optional(lead), GAP, *flexible(start[len(lead) :].strip())]


def _fields(form: CallFormat, last: str) -> list[str]:
    """Returns the steps from the first field of a call to its arguments; `last`: the text before these."""
    names = form.before_arguments
    row: list[str] = []
    for at, name in enumerate(names):
        is_first_name = name is CallField.NAME and CallField.NAME not in names[:at]
        row.append(f"({_NAME})" if is_first_name else _FIELDS[name])
        row += flexible(form.inner[at] if at < len(names) - 1 else last)
    if not last.strip():
        row.append(_NAME_END)
    elif form.arguments is None:
        row.append(GAP)
    return row


def _after_arguments(form: CallFormat) -> list[list[str]]:
    """Returns the steps of what may stand directly behind the arguments."""
    after = form.after_arguments
    if not after:
        return [[], _ID_MEMBER] if form.end.lstrip().startswith("}") else [[]]
    texts = form.inner[len(form.before_arguments) :]
    return [[step for text, name in zip(texts, after, strict=True) for step in (*flexible(text), _FIELDS[name])]]


# Beginnings of texts that are control tokens in the vocabularies of nearly all models: nobody quotes them.
_CONTROL = ("<|", "<｜")  # noqa: RUF001  # DeepSeek has bars of its own


def is_control(tag: str) -> bool:
    """Tells whether a tag is spelled as control tokens are: "<|...>" or "<...|>"."""
    return tag.startswith(_CONTROL) or (tag.startswith("<") and tag.endswith("|>"))


class ThoughtCalls:
    """Finds the first call in thoughts whose head is whole and whose marker is spelled as control tokens are.

    A model whose prompt has opened its thoughts may not know that it thinks: its calls also count at the beginning of
    a line. Thoughts that speak of calls otherwise stay thoughts.
    """

    def __init__(self, markers: Iterable[str], heads: Sequence[Pattern], most_held: int, is_opened: bool) -> None:
        """`most_held`: characters that a head may have; `is_opened`: the prompt has opened the thoughts."""
        self.markers = tuple(marker for marker in markers if marker[0] in "<[")
        self._heads = heads
        self._most_held = most_held
        self._is_opened = is_opened

    def find(self, text: str, is_begin: bool, is_last: bool) -> tuple[int, bool]:
        """Returns (position, True) of a call; else where something starts that may become one, and False.

        `is_begin`: the thoughts begin with this text; `is_last`: no more of them follows.
        """
        at = 0
        while True:
            n, marker = first_of(text[at:], self.markers)
            if n < 0:
                return len(text) if is_last else at + partial_match_at(text[at:], self.markers), False
            at += n
            if self._may_begin(text[:at], marker, is_begin):
                head = first_match(self._heads, text[at:])
                if head is not None and head.end() <= self._most_held:
                    return at, True
                if not is_last and len(text) - at <= self._most_held and any_may_follow(self._heads, text[at:]):
                    return at, False
            at += 1

    def _may_begin(self, before: str, marker: str, is_begin: bool) -> bool:
        line = before.rstrip(" \t")
        return is_control(marker) or (self._is_opened and (line.endswith("\n") or (is_begin and not line)))
