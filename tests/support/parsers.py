"""A parser whose parts a test hands over, for whatever makes answers of them."""

from collections.abc import Iterable, Iterator

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.dialects.chat.parts import AnswerText, CallArguments, CallBegin, End, Part, Reasoning

TICK = [Chunk(0, "", 1, prompt_tokens=5)]  # what the parts come from, one token
LAST_TICK = [Chunk(0, "", 1, Finish.STOP, prompt_tokens=5)]


class HandDrivenParser:
    """A corosrv.dialects.chat.prepare.Parser: each call gives the parts of the next row, whatever the chunks are."""

    def __init__(self, *rows: list[Part], reasoning_tokens: int = 0) -> None:
        self.reasoning_tokens = reasoning_tokens
        self._rows = iter(rows)

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[Part]:
        yield from next(self._rows)


def text(words: str) -> AnswerText:
    return AnswerText(0, words)


def thought(words: str) -> Reasoning:
    return Reasoning(0, words)


def call(number: int, name: str, *pieces: str) -> list[Part]:
    """A call whose arguments come in these pieces."""
    return [CallBegin(0, number, f"call_{number}", name), *(CallArguments(0, number, piece) for piece in pieces)]


def end(reason: str = "stop", word: str = "") -> End:
    finish = Finish.LENGTH if reason == "length" else Finish.STOP
    return End(0, reason, Chunk(0, "", 1, finish, prompt_tokens=5, cached_tokens=2, stopping_word=word))
