"""The logs of all answers whose clients may come back, by their names: how many there are, how large, and how long."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import TooManyLogs
from corosrv.base.waits import call_later
from corosrv.web.kept.answer_log import LOG_COST, AnswerLog, LogName

LOG_BYTES = 4 << 20  # of the events of one answer
ALL_BYTES = 64 << 20
RESUME_S = 60.0
KEPT_S = 300.0
_PAUSE_S = 0.05  # between two sweeps, at least


class OwnerLogs:
    """The logs of one caller, by their names, within `max_bytes`: those that ended first go first."""

    def __init__(self, all_logs: AnswerLogs, max_bytes: int) -> None:
        self._all = all_logs
        self._max_bytes = max_bytes
        self._by_name: dict[LogName, AnswerLog] = {}
        self._running: dict[AnswerLog, None] = {}
        self._ended: OrderedDict[AnswerLog, None] = OrderedDict()  # the oldest first
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def now(self) -> float:
        return self._all.clock()

    def find(self, name: LogName) -> AnswerLog | None:
        return self._by_name.get(name)

    def list_names(self) -> list[tuple[LogName, AnswerLog]]:
        """Lists the logs by all of their names."""
        return list(self._by_name.items())

    def check_room(self) -> None:
        """Raises TooManyLogs if those that run leave no room for one more."""
        if LOG_COST * (len(self._running) + 1) > self._max_bytes:
            raise TooManyLogs(len(self._running))

    def open(self, digest: bytes, cancel: Callable[[], None], *, is_lines: bool = False) -> AnswerLog:
        """Makes a log for an answer that begins; see AnswerLog."""
        answer = AnswerLog(self, digest, cancel, is_lines=is_lines)
        self.grow(LOG_COST)
        for other in self._running:
            other.make_room()  # where it is needed now
        self._running[answer] = None
        return answer

    def name(self, answer: AnswerLog, names: Iterable[LogName]) -> None:
        """Gives a log names, which are no longer those of others; a log without a name is forgotten when it ends."""
        for name in names:
            if (other := self._by_name.get(name)) is not None and other is not answer:
                other.names.discard(name)
                self._forget_nameless(other)
            self._by_name[name] = answer
            answer.names.add(name)

    def drop(self, answer: AnswerLog) -> None:
        """Takes all names of a log away, so that nobody comes back to it."""
        for name in answer.names:
            del self._by_name[name]
        answer.names.clear()
        self._forget_nameless(answer)

    def _forget_nameless(self, answer: AnswerLog) -> None:
        if not answer.names and answer in self._ended:
            del self._ended[answer]
            self.n_bytes -= answer.n_bytes

    def grow(self, n_bytes: int) -> None:
        """Counts bytes of a log that runs; those that have ended make room for them."""
        self.n_bytes += n_bytes
        while self.n_bytes > self._max_bytes and self._ended:
            self.drop(next(iter(self._ended)))

    def is_over(self, n_bytes: int) -> bool:
        """Tells whether a log of so many bytes has to make room."""
        return n_bytes > self._all.log_bytes or self.n_bytes > self._max_bytes

    def note_end(self, answer: AnswerLog) -> None:
        """Keeps a log that has ended for its time; not one that nobody can name."""
        del self._running[answer]
        answer.ended_at = self.now()
        self._ended[answer] = None
        self._forget_nameless(answer)
        self._all.sweep_at(answer.ended_at + self._all.kept_s)

    def note_left(self, now: float) -> None:
        self._all.sweep_at(now + self._all.resume_s)

    def sweep(self, now: float) -> Iterator[float]:
        """Cancels answers whose clients do not come back, and forgets old logs. Yields when others are due."""
        resume_s, kept_s = self._all.resume_s, self._all.kept_s
        for answer in list(self._running):
            if answer.needs_client and answer.left_at is not None:
                if answer.left_at + resume_s > now:
                    yield answer.left_at + resume_s
                else:
                    answer.needs_client = False  # once
                    answer.cancel()
        while self._ended:
            oldest = next(iter(self._ended))
            if oldest.ended_at + kept_s > now:
                yield oldest.ended_at + kept_s
                return
            self.drop(oldest)


class AnswerLogs:
    """The logs of all callers, each of whom has the same room: nobody's push out another's.

    Belongs to the hub's thread. A log that has ended is kept for `kept_s`; an answer whose client has left runs on for
    `resume_s` until it is cancelled, unless a client comes back.
    """

    def __init__(
        self,
        max_bytes: int = ALL_BYTES,
        log_bytes: int = LOG_BYTES,
        resume_s: float = RESUME_S,
        kept_s: float = KEPT_S,
        n_callers: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        has_hub: Callable[[], bool] = lambda: True,
    ) -> None:
        """Divides `max_bytes` by the number of callers; 0 seconds switch logs off. `has_hub`: one for all requests."""
        self._room = max_bytes // max(n_callers, 1)
        self.log_bytes = log_bytes
        self.resume_s = resume_s
        self.kept_s = kept_s
        self.clock = clock
        self._has_hub = has_hub
        self._owners: dict[str, OwnerLogs] = {}
        self._next_sweep = math.inf

    @property
    def is_on(self) -> bool:
        return self.resume_s > 0 and self._has_hub()

    @property
    def n_logs(self) -> int:
        return sum(map(len, self._owners.values()))

    @property
    def n_bytes(self) -> int:
        return sum(logs.n_bytes for logs in self._owners.values())

    def owned_by(self, caller: str) -> OwnerLogs:
        logs = self._owners.get(caller)
        if logs is None:
            logs = self._owners[caller] = OwnerLogs(self, self._room)
        return logs

    def sweep_at(self, time: float) -> None:
        """Sweeps at that time at the latest, even if nobody calls. Returns at once."""
        if time < self._next_sweep:
            self._next_sweep = time
            call_later(max(time - self.clock(), _PAUSE_S), self.sweep)

    def sweep(self) -> None:
        """Ends and forgets what is due. Never waits."""
        self._next_sweep = math.inf
        now = self.clock()
        dues = [due for logs in self._owners.values() for due in logs.sweep(now)]
        if dues:
            self.sweep_at(min(dues))


class LogCollector(Collector):
    """Reads the numbers of logs at each scrape."""

    def __init__(self, logs: AnswerLogs) -> None:
        self._logs = logs

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "corosrv_stream_logs", "Streams that may be resumed, or ended lately", self._logs.n_logs
        )
        yield GaugeMetricFamily("corosrv_stream_log_bytes", "Bytes that their events take", self._logs.n_bytes)
