"""Parses the chunks of a job to the parts of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.chat.choice import ChoiceParser, Syntax
from corosrv.dialects.chat.parts import AnswerText, End, Part, Reasoning


class Parser(Protocol):
    """Makes parts of one job's chunks, as early as it is certain what they are."""

    @property
    def reasoning_tokens(self) -> int:
        """Returns the number of reasoning tokens so far, of all choices."""

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        """Yields the parts that these chunks complete. No chunk may report a failure."""


class TextParser:
    """Parses answers that are text and nothing else."""

    reasoning_tokens = 0

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for chunk in chunks:
            if chunk.text or chunk.tokens:
                yield AnswerText(chunk.index, chunk.text, chunk.tokens)
            if chunk.finish is not None:
                yield End(chunk.index, chunk.finish.value, chunk)


class SyntaxParser:
    """Parses answers that may have thoughts and calls in their text, and go on from `earlier` text."""

    def __init__(self, syntax: Syntax, earlier: str = "") -> None:
        self.reasoning_tokens = 0
        self._syntax = syntax
        self._earlier = earlier
        self._choices: dict[int, ChoiceParser] = {}

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for chunk in chunks:
            choice = self._choices.get(chunk.index)
            if choice is None:
                choice = self._choices[chunk.index] = ChoiceParser(chunk.index, self._syntax)
                if self._earlier:
                    choice.pass_over(self._earlier)
            was_thinking = choice.is_thinking
            yield from choice.push(chunk)
            # A chunk is one token, but for those that held each other back: nobody will miss the difference.
            if was_thinking or choice.is_thinking:
                self.reasoning_tokens += chunk.n_tokens


class EchoParser:
    """Puts a text before each choice of an answer: the beginning of the message that it continues."""

    def __init__(self, parser: Parser, beginning: str, *, is_thought: bool = False) -> None:
        self._parser = parser
        self._beginning = beginning
        self._part = Reasoning if is_thought else AnswerText
        self._begun: set[int] = set()  # numbers of choices

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for part in self._parser.parts(chunks):
            if part.choice not in self._begun:
                self._begun.add(part.choice)
                yield self._part(part.choice, self._beginning)
            yield part


class RepeatParser:
    """Gives thoughts as text as well, between their tags."""

    def __init__(self, parser: Parser, tags: tuple[str, str]) -> None:
        self._parser = parser
        self._opening, self._closing = tags
        self._thinking: set[int] = set()  # numbers of choices

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        for part in self._parser.parts(chunks):
            choice, was_thinking = part.choice, part.choice in self._thinking
            if isinstance(part, Reasoning):
                self._thinking.add(choice)
                yield AnswerText(choice, part.text if was_thinking else self._opening + part.text)
            elif was_thinking and not (isinstance(part, End) and part.reason == Finish.LENGTH):  # which cuts them off
                self._thinking.remove(choice)
                yield AnswerText(choice, self._closing)
            yield part
