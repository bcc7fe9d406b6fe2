"""Receives the answers of one call of a handler."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferItem, InferOutputs, InferReader
from corosrv.workers.dispatch.answers import CallAnswer


class HandlerReader(BufferedReader[InferItem], InferReader):
    """Yields a call's answers; the InferEnd comes once and is the last, whatever happens.

    A cancel ends the call at once with CallCancelled; a worker that has it is told.
    """

    def __init__(self, card: HandlerCard, cancel: Callable[[], None], is_replayed: bool = False) -> None:
        """`cancel`: ends the call, by calling `end`, unless it has ended."""
        super().__init__(cancel)
        self._card = card
        self._is_replayed = is_replayed

    @classmethod
    def of_answer(cls, answer: CallAnswer) -> HandlerReader:
        """Makes the reader of a call that need not run: its answer is known."""
        reader = cls(answer.card, lambda: None, is_replayed=True)
        for outputs in answer.outputs:
            reader.add(outputs, 0)
        reader.end(None if answer.end.error is None else answer.end.error.fresh())
        return reader

    @property
    def card(self) -> HandlerCard:
        return self._card

    @property
    def is_replayed(self) -> bool:
        return self._is_replayed

    def add(self, outputs: InferOutputs, n_bytes: int) -> None:
        """Adds an answer; none may follow the end. Never waits."""
        self.add_item(outputs, n_bytes)

    def end(self, error: CorosrvError | None) -> None:
        """Adds the end, once. Never waits."""
        self.add_last(InferEnd(error))
