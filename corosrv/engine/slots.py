"""What the slots of an engine show: the loop's counters, and what was asked of the tasks that run in them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from corosrv.engine.binding import Slot
from corosrv.jobs import Job, SlotState


class TaskNotes:
    """Numbers tasks, and remembers what was asked of those that a slot may show. Any thread may call.

    Bounded: of more tasks than may run and wait, and the same again for slots that rest, the oldest are forgotten. A
    slot whose task runs longer than all these shows its counters alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = 2 * limit
        self._lock = Lock()
        self._numbers = itertools.count()
        self._jobs: OrderedDict[int, Job] = OrderedDict()

    def number(self, job: Job | None = None) -> int:
        """Of one more task; `job` is what slots are to show of it."""
        with self._lock:
            number = next(self._numbers)
            if job is not None:
                self._jobs[number] = job
                while len(self._jobs) > self._limit:
                    self._jobs.popitem(last=False)
        return number

    def describe(self, slots: Iterable[Slot]) -> tuple[SlotState, ...]:
        return tuple(self._state(number, slot) for number, slot in enumerate(slots))

    def _state(self, number: int, slot: Slot) -> SlotState:
        job = self._jobs.get(slot.task)
        return SlotState(
            number,
            bool(slot.is_busy),
            slot.task,
            slot.prompt_tokens,
            slot.computed_tokens,
            slot.cached_tokens,
            slot.generated_tokens,
            max_tokens=None if job is None else job.max_tokens,
            sampling=None if job is None else job.sampling,
            has_new_line=bool(slot.has_new_line),
        )
