"""Forwards requests of groups: aborts them, and gives what there is of answers that are not streamed.

`ChangedReader` is for whatever changes an upstream's answer on its way to the client.
"""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from corosrv.base.errors import WorkerLost
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, HandlerCard, InferEnd, InferItem, InferReader
from corosrv.contracts.jobs.reader import Sink
from corosrv.gateway.forwarding.event_join import ABORT, EventJoin, StreamedError
from corosrv.gateway.forwarding.headers import media_type
from corosrv.web.groups import GroupMember

EVENT_STREAM = "text/event-stream"
MAX_JOINED = 64 << 20  # bytes of events that are joined to one answer

OF_THE_FORM = frozenset({"cache-control", "content-type", "x-accel-buffering"})


class ChangedReader(InferReader):
    """Reads the answer of a call, and gives other items in place of each."""

    def __init__(self, reader: InferReader) -> None:
        self._reader = reader
        self._head: AnswerHead | None = None  # of an answer that is being changed
        self._outcome: list[InferItem] | None = None  # what the end is replaced with

    @property
    def card(self) -> HandlerCard:
        return self._reader.card

    @property
    def is_finished(self) -> bool:
        return self._reader.is_finished

    def take(self, timeout: float | None = None) -> list[InferItem]:
        """Returns items as the reader of the call does, or later ones where those give nothing. Waits."""
        items: list[InferItem] = []
        while not items and not self._reader.is_finished:
            for item in self._reader.take(timeout):
                items += self._pass(item)
        return items

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        while (items := self.take(timeout)) and sink(items):
            pass

    @abstractmethod
    def _pass(self, item: InferItem) -> list[InferItem]:
        """Returns what takes the place of an item."""

    def _give_up(self, outcome: list[InferItem]) -> None:
        """Ends the call, whatever more would come of it; `outcome` takes the place of its end."""
        self._outcome = outcome
        self._reader.cancel()

    def _answer(self, status: int, body: bytes) -> list[InferItem]:
        """Makes the items of an answer in JSON, with those headers of the upstream's that are not of its form."""
        assert self._head is not None
        fields = [field for field in self._head.headers if field[0].lower() not in OF_THE_FORM]
        head = AnswerHead(status=status, headers=(*fields, ("Content-Type", "application/json")))
        return [head, AnswerBody(data=body)]

    def cancel(self) -> None:
        self._reader.cancel()

    def close(self) -> None:
        self._reader.close()


class GroupedReader(ChangedReader):
    """Reads the answer to a request of a group, and owns its membership.

    After an abort the call's end says that it was aborted. With a join, the stream that comes is one answer, which
    is there at once; what has come of it by an abort is an answer as well, if the abort keeps partial ones.
    """

    def __init__(self, reader: InferReader, member: GroupMember, join: EventJoin | None) -> None:
        super().__init__(reader)
        self._member = member
        self._join = join
        member.bind(reader.cancel)

    def _pass(self, item: InferItem) -> list[InferItem]:
        if isinstance(item, InferEnd):
            return self._end(item)
        if isinstance(item, AnswerHead):
            if self._join is not None and item.status == 200 and media_type(item.headers) == EVENT_STREAM:
                self._head = item
                return []
            return [item]
        if self._head is None or self._join is None or not isinstance(item, AnswerBody):
            return [item]
        return self._feed(self._join, item.data)

    def _feed(self, join: EventJoin, data: bytes) -> list[InferItem]:
        if self._outcome is not None:
            return []
        try:
            join.feed(data)
            if join.n_bytes > MAX_JOINED:
                raise WorkerLost(f"the upstream's answer is over the {MAX_JOINED} bytes that are joined")
        except StreamedError as error:
            self._give_up([*self._answer(502, msgspec.json.encode(error.body)), InferEnd(None)])
        except WorkerLost as error:
            self._give_up([InferEnd(error)])
        return []

    def _end(self, end: InferEnd) -> list[InferItem]:
        if self._outcome is not None:
            return self._outcome
        join = None if self._head is None else self._join
        if self._member.is_aborted and end.error is not None:
            if join is None or not self._member.keeps_partial:
                return [InferEnd(self._member.error())]
            return [*self._answer(200, msgspec.json.encode(join.answer(ABORT))), InferEnd(None)]
        if join is None or end.error is not None:
            return [end]
        if not join.is_complete:
            return [InferEnd(WorkerLost("the upstream's stream broke off"))]
        return [*self._answer(200, msgspec.json.encode(join.answer())), InferEnd(None)]

    def close(self) -> None:
        self._member.leave()
        super().close()
