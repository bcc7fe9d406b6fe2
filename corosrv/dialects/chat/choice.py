"""Splits one answer's text into thoughts, text and calls while it arrives."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache

import msgspec

from corosrv.contracts.jobs import Chunk, Finish, TokenInfo
from corosrv.dialects.chat.argument_reader import ArgumentReader, JsonReader
from corosrv.dialects.chat.call_patterns import CallPatterns, ThoughtCalls, any_may_follow, first_match, is_control
from corosrv.dialects.chat.member_reader import reader_for
from corosrv.dialects.chat.parts import (
    AnswerText,
    CallArguments,
    CallBegin,
    End,
    Part,
    Reasoning,
    TokenQueue,
    first_of,
    partial_match_at,
)
from corosrv.formats.callformats.description import CallFormat

# Characters that may stand between two certain places of a call: what is longer is no call.
_MOST_HELD = 512


class Syntax(msgspec.Struct, frozen=True):
    """The syntax of an answer: the tags of thoughts and the format of calls."""

    thought_tags: tuple[str, str] | None = None
    begins_in_thoughts: bool = False  # the prompt has opened them
    tool_format: CallFormat | None = None
    markers: tuple[str, ...] = ()  # the texts that a call begins with
    only_calls: bool = False  # after the thoughts nothing but calls may come
    edges: tuple[str, ...] = ()  # texts around the answer's text that are no part of it
    string_members: frozenset[tuple[str, str]] = frozenset()  # names of tools, and of their arguments that are strings
    element_types: dict[str, dict[str, str]] = {}  # JSON types by paths in the arguments, by tools, for an ElementTree


class _ChoiceMode(Enum):
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
        self._mode = _ChoiceMode.TEXT
        if syntax.thought_tags is not None or syntax.edges:
            self._mode = _ChoiceMode.THOUGHTS if syntax.begins_in_thoughts else _ChoiceMode.START
        # Places in the answer's text, in characters, where thoughts begin, and end, and begin again.
        self.thought_edges = [0] if self.is_thinking else []
        self._n_read = 0  # characters of the answer's text
        self._held = ""
        self._n_earlier = 0  # characters of what is held that came before the answer
        self._tokens = TokenQueue()
        self._skips_space = self._mode is _ChoiceMode.THOUGHTS
        self._has_text = self._has_thoughts = False
        self._n_calls = 0
        self._is_cut = False  # the answer ended before the model ended it
        self._reader: ArgumentReader = JsonReader()
        self._may_think = syntax.thought_tags is not None
        form = syntax.tool_format
        self._markers = () if form is None else syntax.markers or form.markers
        if form is not None:
            self._format = form
            self._patterns = _patterns(form)
            self._heads = self._patterns.first_heads
        in_thoughts = () if form is None or form.is_alone else self._markers
        heads = self._heads if in_thoughts else ()
        self._thought_calls = ThoughtCalls(in_thoughts, heads, _MOST_HELD, syntax.begins_in_thoughts)
        # Tags that are control tokens are in no text: thoughts may begin again.
        late_tags = tuple(filter(is_control, syntax.thought_tags or ()))
        self._reopening = syntax.thought_tags[0] if syntax.thought_tags and syntax.thought_tags[0] in late_tags else ""
        around_calls = () if form is None else (*(text.strip() for text in form.lead_ins), form.trailer)
        # Those that stand anywhere; others only begin an answer's text.
        dropped = tuple(edge for edge in (*syntax.edges, *around_calls) if edge[:1] in ("<", "["))
        self._dropped = (*dropped, *late_tags)
        # Characters that something else may begin with, in each mode that lasts.
        self._watched = {_ChoiceMode.TEXT: frozenset(word[0] for word in (*self._markers, *self._dropped))}
        if syntax.thought_tags is not None:
            words = (syntax.thought_tags[1], *self._thought_calls.markers)
            self._watched[_ChoiceMode.THOUGHTS] = frozenset(word[0] for word in words)
        self._steps = {
            _ChoiceMode.START: self._start,
            _ChoiceMode.THOUGHTS: self._thoughts,
            _ChoiceMode.TEXT: self._text,
            _ChoiceMode.HEAD: self._call_head,
            _ChoiceMode.ARGUMENTS: self._call_arguments,
            _ChoiceMode.TAIL: self._call_tail,
        }

    @property
    def is_thinking(self) -> bool:
        return self._mode is _ChoiceMode.THOUGHTS

    @property
    def n_held(self) -> int:
        """Returns how many characters at the end of the text have an open meaning."""
        return len(self._held)

    @property
    def has_calls(self) -> bool:
        """Returns whether a call has begun, or what looks like one."""
        return self._n_calls > 0 or self._mode is _ChoiceMode.HEAD

    def pass_over(self, text: str) -> None:
        """Takes a text that the answer goes on from: it decides what follows, and is no part of the answer."""
        for _ in self.push(Chunk(self._index, text, 0)):
            pass
        self._n_earlier, self._n_read = len(self._held), 0
        self.thought_edges = [0] if self.is_thinking else []

    def push(self, chunk: Chunk) -> Iterator[Part]:
        """Yields the parts that are certain with this chunk; for a terminal chunk also all held text, and the end."""
        self._n_read += len(chunk.text)
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
        if self._mode is _ChoiceMode.THOUGHTS:
            self._has_thoughts = True
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
        n_earlier = min(self._n_earlier, n)
        self._n_earlier -= n_earlier
        return text, self._tokens.take(text[n_earlier:])

    def _give_text(self, n: int) -> Iterator[Part]:
        if n:
            self._has_text = True
            n_earlier = self._n_earlier
            text, tokens = self._cut(n)
            if n > n_earlier:
                yield AnswerText(self._index, text[n_earlier:], tokens)

    def _give_thoughts(self, n: int) -> Iterator[Part]:
        if n:
            self._has_thoughts = True
            n_earlier = self._n_earlier
            thoughts = self._cut(n)[0][n_earlier:]
            if thoughts:
                yield Reasoning(self._index, thoughts)

    def _note_edge(self) -> None:
        """Notes that thoughts have begun or ended before what is held."""
        self.thought_edges.append(self._n_read - len(self._held))

    # One method for each mode: takes what is certain from what is held, and may change the mode.

    def _start(self, is_last: bool) -> Iterator[Part]:
        text = self._held.lstrip()
        tags = self._syntax.thought_tags
        openings = (tags[0], *self._syntax.edges) if self._may_think and tags is not None else self._syntax.edges
        words = (*openings, *self._markers)  # an opening may be the beginning of a marker
        begun = max((word for word in words if text.startswith(word)), key=len, default="")
        if not is_last and any(word.startswith(text) and len(word) > len(begun) for word in words):
            return
        if begun in openings:
            self._cut(len(self._held) - len(text) + len(begun))
            self._skips_space = True
            if begun not in self._syntax.edges:
                self._mode = _ChoiceMode.THOUGHTS
                self._note_edge()
        else:
            self._mode = _ChoiceMode.TEXT
        yield from ()

    def _thoughts(self, is_last: bool) -> Iterator[Part]:
        assert self._syntax.thought_tags is not None
        closing = self._syntax.thought_tags[1]
        at = self._held.find(closing)
        thoughts = self._held if at < 0 else self._held[:at]
        begun, is_call = self._thought_calls.find(thoughts, not self._has_thoughts, is_last or at >= 0)
        if is_call:
            yield from self._give_thoughts(len(self._held[:begun].rstrip()))
            self._mode, self._may_think = _ChoiceMode.HEAD, False
            self._note_edge()
        elif at >= 0:
            yield from self._give_thoughts(len(self._held[:at].rstrip()))
            self._cut(len(self._held) - len(self._held.lstrip()) + len(closing))
            self._mode, self._skips_space = _ChoiceMode.START if self._syntax.edges else _ChoiceMode.TEXT, True
            self._may_think = False
            self._note_edge()
        elif is_last:
            yield from self._give_thoughts(len(self._held))
        else:
            begun = min(begun, partial_match_at(self._held, (closing,)))
            yield from self._give_thoughts(len(self._held[:begun].rstrip()))

    def _text(self, is_last: bool) -> Iterator[Part]:
        if not self._markers and not self._dropped:
            yield from self._give_text(len(self._held))
            return
        at, is_call, size = self._marker(is_last)
        if is_call or size or not is_last:
            # The space before a call goes with the call.
            yield from self._give_text(len(self._held[:at].rstrip()))
        elif not self._is_begun_call(at):
            yield from self._give_text(len(self._held))
        if is_call:
            self._mode, self._heads = _ChoiceMode.HEAD, self._patterns.first_heads
        elif size:
            begin = len(self._held) - len(self._held.lstrip())
            word = self._cut(begin + size)[0].lstrip()
            if word == self._reopening:
                self._mode = _ChoiceMode.THOUGHTS
                self._note_edge()
            self._skips_space = True

    def _is_begun_call(self, at: int) -> bool:
        """Returns whether a call had to come and only the beginning of its marker, at `at`, has come."""
        is_due = self._syntax.only_calls or (self._n_calls > 0 and (self._is_cut or at == len(self._held)))
        return is_due and not self._held[:at].strip()

    def _marker(self, is_last: bool) -> tuple[int, bool, int]:
        """Returns (position, True, 0) of the first call marker, (position, False, length) of what is to be dropped;
        else (earliest start of a partial one, False, 0)."""
        at, word = first_of(self._held, self._dropped)
        partial = partial_match_at(self._held, self._dropped)
        if self._markers and not self._format.is_alone:
            at, word = first_of(self._held, (*self._markers, *self._dropped))
            partial = min(partial, partial_match_at(self._held, self._markers))
        elif self._markers and not self._has_text and not self._n_calls:
            text = self._held.lstrip()
            begin = len(self._held) - len(text)
            if any(marker.startswith(text[: len(marker)]) for marker in self._markers):
                return begin, any(text.startswith(marker) for marker in self._markers), 0
        if at < 0:
            return partial, False, 0
        longer = (other for other in (*self._markers, *self._dropped) if len(other) > len(word))
        if not is_last and any(other.startswith(self._held[at:]) for other in longer):
            return at, False, 0  # more of the text may make it a longer one
        return at, word in self._markers, len(word) if word not in self._markers else 0

    def _call_head(self, is_last: bool) -> Iterator[Part]:
        match = first_match(self._heads, self._held)
        if match is not None and match.end() <= _MOST_HELD:
            name = match.group(1)
            yield CallBegin(self._index, self._n_calls, f"call_{secrets.token_hex(12)}", name)
            self._n_calls += 1
            self._cut(match.end())
            types = self._syntax.element_types.get(name, {})
            self._reader = reader_for(self._format, _StringArguments(self._syntax, name), types)
            self._mode, self._skips_space = _ChoiceMode.ARGUMENTS, self._format.arguments is None
        elif is_last and (self._is_cut or self._syntax.only_calls) and any_may_follow(self._heads, self._held):
            pass  # a call that was cut off before its name was known: markup, and no text
        elif (
            is_last or match is not None or len(self._held) > _MOST_HELD or not any_may_follow(self._heads, self._held)
        ):
            # A false start: it is text. Another call may begin behind its marker.
            text = self._held.lstrip()
            marker = max((word for word in self._markers if text.startswith(word)), key=len, default=text[:1])
            self._mode = _ChoiceMode.TEXT
            yield from self._give_text(len(self._held) - len(text) + len(marker))

    def _call_arguments(self, is_last: bool) -> Iterator[Part]:
        taken, piece = self._reader.feed(self._held, is_last)
        if taken:
            self._cut(taken)
        if piece:
            yield CallArguments(self._index, self._n_calls - 1, piece)
        if self._reader.is_whole:
            self._mode = _ChoiceMode.TAIL

    def _call_tail(self, is_last: bool) -> Iterator[Part]:
        patterns, text = self._patterns, self._held
        end, joint = first_match(patterns.ends, text), first_match(patterns.joints, text)
        if joint and first_match(patterns.whole_joints, text):
            self._leave_call(joint.end(), _ChoiceMode.HEAD)
        elif len(text) <= _MOST_HELD and any_may_follow(patterns.whole_joints, text):
            pass
        elif end and end.end() <= _MOST_HELD:
            self._leave_call(end.end(), _ChoiceMode.TEXT)
        elif len(text) > _MOST_HELD or not any_may_follow(patterns.ends, text):
            # Neither as it should be; another call may still follow.
            self._leave_call(joint.end() if joint else 0, _ChoiceMode.HEAD if joint else _ChoiceMode.TEXT)
        yield from ()

    def _leave_call(self, n: int, mode: _ChoiceMode) -> None:
        self._cut(n)
        self._skips_space = n > 0
        self._mode = mode
        self._heads = self._patterns.next_heads


class _StringArguments:
    """The names of one tool's arguments that are strings."""

    def __init__(self, syntax: Syntax, tool: str) -> None:
        self._syntax = syntax
        self._tool = tool

    def __contains__(self, name: object) -> bool:
        return (self._tool, name) in self._syntax.string_members


@lru_cache(maxsize=64)
def _patterns(form: CallFormat) -> CallPatterns:
    return CallPatterns(form)
