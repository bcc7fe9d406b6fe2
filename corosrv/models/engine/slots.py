"""The state of an engine's slots: the loop's counters, and the options of the tasks that run in them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from corosrv.base.waits import ThreadLock
from corosrv.contracts.jobs import Job, Sampling, SlotState
from corosrv.models.engine.binding import SlotCounters

_BREAKERS = Sampling().dry_sequence_breakers  # the same for all jobs that name none


@dataclass(frozen=True, slots=True)
class TaskNote:
    """The options of a job that a slot shows: numbers, and no text of a request."""

    sampling: Sampling
    max_tokens: int | None
    stream: bool
    caller: str

    @classmethod
    def of_job(cls, job: Job) -> TaskNote:
        sampling = job.sampling
        if sampling.logit_bias or sampling.grammar or sampling.dry_sequence_breakers != _BREAKERS:
            sampling = replace(sampling, logit_bias=(), grammar="", grammar_triggers=(), dry_sequence_breakers=())
        return cls(sampling, job.max_tokens, job.stream, job.terms.caller)


class TaskNotes:
    """Numbers tasks, and keeps a note of those that a slot may show. Any thread may call.

    Bounded: of more tasks than may run and wait, and the same again for slots that rest, the oldest are forgotten. A
    slot whose task runs longer than all these shows its counters alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = 2 * limit
        self._lock = ThreadLock()
        self._numbers = itertools.count()
        self._notes: OrderedDict[int, TaskNote] = OrderedDict()

    def number(self, note: TaskNote | None = None) -> int:
        """Returns the number of one more task; `note` is what slots show of it."""
        with self._lock:
            number = next(self._numbers)
            if note is not None:
                self._notes[number] = note
                while len(self._notes) > self._limit:
                    self._notes.popitem(last=False)
        return number

    def describe(self, slots: Iterable[SlotCounters]) -> tuple[SlotState, ...]:
        """Joins the loop's counters of each slot with the note of its task."""
        return tuple(self._state(number, slot) for number, slot in enumerate(slots))

    def _state(self, number: int, slot: SlotCounters) -> SlotState:
        note = self._notes.get(slot.task)
        return SlotState(
            number,
            bool(slot.is_busy),
            slot.task,
            slot.prompt_tokens,
            slot.computed_tokens,
            slot.cached_tokens,
            slot.generated_tokens,
            has_new_line=bool(slot.has_new_line),
            max_tokens=None if note is None else note.max_tokens,
            sampling=None if note is None else note.sampling,
            stream=note is not None and note.stream,
            caller="" if note is None else note.caller,
        )
