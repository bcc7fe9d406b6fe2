"""Splits one answer's text into thoughts, text and calls while it arrives."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from enum import Enum

import msgspec

from corosrv.chat.formats import ToolFormat
from corosrv.chat.json_value import JsonValue
from corosrv.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning
from corosrv.chat.patterns import first_of, partial_match_at
from corosrv.chat.spans import TokenQueue
from corosrv.jobs import Chunk, Finish, TokenInfo

# Characters that may stand between two certain places of a call: what is longer is no call.
_MOST_HELD = 512


class Syntax(msgspec.Struct, frozen=True):
    """The syntax of an answer: the tags of thoughts and the format of calls."""

    thought_tags: tuple[str, str] | None = None
    begins_in_thoughts: bool = False  # the prompt has opened them
    tool_format: ToolFormat | None = None
    only_calls: bool = False  # after the thoughts nothing but calls may come

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that a call begins with."""
        return () if self.tool_format is None else self.tool_format.markers


class _Mode(Enum):
    START = "nothing but white space so far: thoughts or text"
    THOUGHTS = "in thoughts"
    TEXT = "in text"
    HEAD = "before a call's arguments"
    ARGUMENTS = "in a call's arguments"
    TAIL = "after a call's arguments"


class ChoiceParser:
    """Parses one choice. Holds text back only while its meaning is open; how the text is cut changes no part.

    White space around thoughts, and between text and calls, belongs to neither and is dropped.
    """

    def __init__(self, index: int, syntax: Syntax) -> None:
        self._index = index
        self._syntax = syntax
        self._mode = _Mode.TEXT
        if syntax.thought_tags is not None:
            self._mode = _Mode.THOUGHTS if syntax.begins_in_thoughts else _Mode.START
        self._held = ""
        self._tokens = TokenQueue()
        self._skips_space = self._mode is _Mode.THOUGHTS
        self._has_text = False
        self._n_calls = 0
        self._is_cut = False  # the answer ended before the model ended it
        self._value = JsonValue()
        if syntax.tool_format is not None:
            self._format = syntax.tool_format
            self._tail = syntax.tool_format.tail()
            self._head = self._first_head = syntax.tool_format.first_head()
        # Characters that something else may begin with, in each mode that lasts.
        self._watched = {_Mode.TEXT: frozenset(marker[0] for marker in syntax.markers)}
        if syntax.thought_tags is not None:
            self._watched[_Mode.THOUGHTS] = frozenset(syntax.thought_tags[1][0])
        self._steps = {
            _Mode.START: self._start,
            _Mode.THOUGHTS: self._thoughts,
            _Mode.TEXT: self._text,
            _Mode.HEAD: self._call_head,
            _Mode.ARGUMENTS: self._call_arguments,
            _Mode.TAIL: self._call_tail,
        }

    @property
    def is_thinking(self) -> bool:
        return self._mode is _Mode.THOUGHTS

    def push(self, chunk: Chunk) -> Iterator[Part]:
        """Yields the parts that are certain with this chunk; for a terminal chunk also all held text, and the end."""
        if self._is_plain(chunk):
            yield self._plain_part(chunk.text)
            return
        self._tokens.add(chunk.tokens)
        self._held += chunk.text
        is_last = chunk.finish is not None
        self._is_cut = is_last and chunk.finish is not Finish.STOP
        while True:
            state = self._mode, len(self._held)
            if self._skips_space:
                self._skip_space()
            yield from self._steps[self._mode](is_last)
            if (self._mode, len(self._held)) == state:
                break
        if chunk.finish is not None:
            yield from self._end(chunk, chunk.finish)

    # Most chunks are words that begin nothing. This short way for them saves nine tenths of the time.

    def _is_plain(self, chunk: Chunk) -> bool:
        text, watched = chunk.text, self._watched.get(self._mode)
        return bool(
            text
            and not self._held
            and not self._skips_space
            and not chunk.tokens
            and chunk.finish is None
            and watched is not None
            and watched.isdisjoint(text)
            and not text[-1].isspace()
        )

    def _plain_part(self, text: str) -> Part:
        if self._mode is _Mode.THOUGHTS:
            return Reasoning(self._index, text)
        self._has_text = True
        return AnswerText(self._index, text)

    def _end(self, chunk: Chunk, finish: Finish) -> Iterator[Part]:
        tokens = self._tokens.take_all()
        if tokens and not self._n_calls:
            yield AnswerText(self._index, "", tokens)
        is_called = self._n_calls > 0 and finish is Finish.STOP
        yield End(self._index, "tool_calls" if is_called else finish.value, chunk)

    def _skip_space(self) -> None:
        n_space = len(self._held) - len(self._held.lstrip())
        self._cut(n_space)
        self._skips_space = not self._held

    def _cut(self, n: int) -> tuple[str, tuple[TokenInfo, ...]]:
        """Removes that many characters from the held text, and returns them with their tokens."""
        text, self._held = self._held[:n], self._held[n:]
        return text, self._tokens.take(text)

    def _give_text(self, n: int) -> Iterator[Part]:
        if n:
            self._has_text = True
            yield AnswerText(self._index, *self._cut(n))

    def _give_thoughts(self, n: int) -> Iterator[Part]:
        if n:
            yield Reasoning(self._index, self._cut(n)[0])

    # One method for each mode: takes what is certain from what is held, and may change the mode.

    def _start(self, is_last: bool) -> Iterator[Part]:
        assert self._syntax.thought_tags is not None
        opening, text = self._syntax.thought_tags[0], self._held.lstrip()
        if text.startswith(opening):
            self._cut(len(self._held) - len(text) + len(opening))
            self._mode, self._skips_space = _Mode.THOUGHTS, True
        elif is_last or not opening.startswith(text):
            self._mode = _Mode.TEXT
        yield from ()

    def _thoughts(self, is_last: bool) -> Iterator[Part]:
        assert self._syntax.thought_tags is not None
        closing = self._syntax.thought_tags[1]
        at = self._held.find(closing)
        if at >= 0:
            yield from self._give_thoughts(len(self._held[:at].rstrip()))
            self._cut(len(self._held) - len(self._held.lstrip()) + len(closing))
            self._mode, self._skips_space = _Mode.TEXT, True
        elif is_last:
            yield from self._give_thoughts(len(self._held))
        else:
            yield from self._give_thoughts(len(self._held[: partial_match_at(self._held, (closing,))].rstrip()))

    def _text(self, is_last: bool) -> Iterator[Part]:
        if self._syntax.tool_format is None:
            yield from self._give_text(len(self._held))
            return
        at, is_whole = self._marker()
        if is_whole or not is_last:
            # The space before a call goes with the call.
            yield from self._give_text(len(self._held[:at].rstrip()))
        elif not self._is_begun_call(at):
            yield from self._give_text(len(self._held))
        if is_whole:
            self._mode, self._head = _Mode.HEAD, self._first_head

    def _is_begun_call(self, at: int) -> bool:
        """Returns whether a call had to come and only the beginning of its marker, at `at`, has come."""
        is_due = self._syntax.only_calls or (self._n_calls > 0 and (self._is_cut or at == len(self._held)))
        return is_due and not self._held[:at].strip()

    def _marker(self) -> tuple[int, bool]:
        """Returns (position, True) of the first call marker, else (earliest start of a partial marker, False)."""
        markers = self._format.markers
        if not self._format.is_alone:
            at, _ = first_of(self._held, markers)
            return (at, True) if at >= 0 else (partial_match_at(self._held, markers), False)
        text = self._held.lstrip()
        at = len(self._held) - len(text)
        if self._has_text or self._n_calls or not any(marker.startswith(text[: len(marker)]) for marker in markers):
            return len(self._held), False
        return at, any(text.startswith(marker) for marker in markers)

    def _call_head(self, is_last: bool) -> Iterator[Part]:
        match = self._head.match(self._held)
        if match is not None and match.end() <= _MOST_HELD:
            yield CallBegin(self._index, self._n_calls, f"call_{secrets.token_hex(12)}", match.group(1))
            self._n_calls += 1
            self._cut(match.end())
            self._value = JsonValue()
            self._mode, self._skips_space = _Mode.ARGUMENTS, True
        elif is_last and (self._is_cut or self._syntax.only_calls) and self._head.may_follow(self._held):
            pass  # a call that was cut off before its name was known: markup, and no text
        elif is_last or match is not None or len(self._held) > _MOST_HELD or not self._head.may_follow(self._held):
            # A false start: it is text. Another call may begin after its first character.
            self._mode = _Mode.TEXT
            yield from self._give_text(len(self._held) - len(self._held.lstrip()) + 1)

    def _call_arguments(self, is_last: bool) -> Iterator[Part]:
        n_piece = self._value.feed(self._held)
        if n_piece:
            yield CallArguments(self._index, self._n_calls - 1, self._cut(n_piece)[0])
        if self._value.is_whole:
            self._mode = _Mode.TAIL

    def _call_tail(self, is_last: bool) -> Iterator[Part]:
        match = self._tail.match(self._held)
        if match is not None and match.end() <= _MOST_HELD:
            self._cut(match.end())
            self._skips_space = True
            self._mode = _Mode.TEXT
            if match.group("joint"):
                self._mode, self._head = _Mode.HEAD, self._format.next_head()
        elif len(self._held) > _MOST_HELD:
            self._mode = _Mode.TEXT
        yield from ()
