"""The receiving end of one job, and the chunks that it yields: pieces of text with the tokens they are made of.

Each task of a job has one terminal chunk, its last, which says why it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec


class Finish(str, Enum):
    """Why a task ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An alternative token at this position, with its log-probability."""

    id: int
    piece: bytes  # what it adds to the text; b"" for an end token
    logprob: float  # natural; never infinite


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token that came, and the likeliest in its place, best first: as many as the job asked for."""

    id: int
    piece: bytes
    logprob: float | None  # None: the first token of a prompt, which nothing stands before
    top: tuple[Candidate, ...] = ()


class Chunk(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that a reader yields. The only one with `finish` is its task's terminal chunk, the last."""

    index: int  # which task of the job
    text: str  # whole characters; the message when finish is ERROR
    n_tokens: int  # generated since the task's previous chunk, the end token included
    finish: Finish | None = None
    # Of the task so far, in its terminal chunk and in those that tell of tokens or progress.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    # Of the whole task, in its terminal chunk.
    stopping_word: str = ""  # the stop string that ended it
    code: str = ""  # of an ERROR, a word for programs; "" is a bug or a failed decode
    slot: int = -1  # where it ran last
    dropped_tokens: int = 0  # by shifts of the context, to make room
    compute_ms: float = 0.0  # of the machine so far: its part of each step; in every chunk
    image_tokens: int = 0  # of the prompt's, those that stand for images
    drafted_tokens: int = 0  # guesses of next tokens that were computed; also where tokens are told of
    accepted_tokens: int = 0  # of these, those that came true
    # Only where the job asks for it.
    tokens: tuple[TokenInfo, ...] = ()  # those that `text` is made of
    prompt_info: tuple[TokenInfo, ...] = ()  # of the prompt's tokens, in the order that they are read
    read_tokens: int = -1  # of the prompt, by now
    vector: bytes = b""  # float32, little-endian: an embedding, or a score alone; in the terminal chunk
    ids: bytes = b""  # int32, little-endian: the n_tokens tokens; some of their text may not be certain yet
    state: bytes = b""  # the sampler's behind the last of them


Item = TypeVar("Item")

# Takes over items; says whether it wants more.
Sink = Callable[[list[Item]], bool]


def take_first(pump: Callable[[Sink[Item], float | None], None], timeout: float | None) -> list[Item]:
    """Returns what a reader's `pump` hands over first, nothing if it ends before. Waits, and raises, as it does."""
    items: list[Item] = []

    def keep(arrived: list[Item]) -> bool:
        nonlocal items
        items = arrived
        return False

    pump(keep, timeout)
    return items


class Reader(Protocol[Item]):
    """The receiving end of one job's results: chunks of an engine, answers of a predictor, events of a prediction.

    Iterating yields items until the last one. Leaving the `with` block closes the reader. Belongs to the thread that
    made it; only `cancel` may be called from others.
    """

    @property
    def is_finished(self) -> bool:
        """The last item was taken, or nobody will take it."""

    def take(self, timeout: float | None = None) -> list[Item]:
        """Returns all unread items, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """

    def pump(self, sink: Sink[Item], timeout: float | None = None) -> None:
        """Hands all unread items to `sink` each time there are some, until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without items.
        """

    def cancel(self) -> None:
        """Ends what is unfinished, in its own time; its last items say so. Never waits; twice is harmless."""

    def close(self) -> None:
        """Cancels, and drops what is unread or yet to come. Twice is harmless."""

    def __iter__(self) -> Iterator[Item]:
        while items := self.take():
            yield from items

    def __enter__(self) -> Reader[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
