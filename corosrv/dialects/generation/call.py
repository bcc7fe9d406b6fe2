"""A request after its dialect has translated it: the job, and what makes its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk, Job


class Answer(Protocol):
    """A dialect's translation out, for one request: chunks to one answer, or to events."""

    def complete(self, chunks: list[Chunk]) -> Any:
        """Makes the answer that is not streamed, a value for JSON. No task has failed.

        An abort of the group may have cancelled some.
        """

    def first(self) -> bytes:
        """Makes what is sent as soon as the job is taken: at least a comment, which carries the headers."""

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        """Makes the events for these chunks, and the end of the stream after the last. No task of them has failed."""

    def failure(self, error: CorosrvError) -> bytes:
        """Makes the event of an error that ends the stream."""


class Call(msgspec.Struct, frozen=True):
    """A request translated: the job, and what makes its answer from the job's chunks."""

    job: Job
    stream: bool
    answer: Answer
    priority: int | None = None  # the body's; 0 and None leave it to the request's header
