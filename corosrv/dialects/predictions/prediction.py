"""One prediction: its state, its outputs and metrics so far, and the object that clients see.

Metrics are what the predictor recorded, by name; dots in names make nested objects. Its events are numbered from 1, and
the reader of one client is told if it has missed some.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from corosrv.base.errors import CorosrvError, IllegalTransition
from corosrv.dialects.predictions.files import TURN, encode, encode_in_turns, split_in_turns
from corosrv.web.http import sse
from corosrv.web.kept.event_log import Cursor, EventLog, EventPiece, LogReader

LIVE = 1024  # events kept for those who read right now, where none are for those who come later
MAX_READERS = 1024  # of one prediction


class Event:
    """One thing that happened, as a server-sent event; encoded once, whoever reads it."""

    __slots__ = ("_pieces", "data", "name", "number")

    def __init__(self, name: str, data: Any, number: int | None = None) -> None:
        self.name = name
        self.data = data
        self.number = number  # None: not of the history, so that nobody goes on after it
        self._pieces: tuple[bytes, ...] = ()

    @property
    def wire(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The same in pieces, of which an event of ordinary size has one. A large one is never copied as a whole."""
        if not self._pieces:
            number = b"" if self.number is None else b"id: %d\n" % self.number
            head = b"%bevent: %b\ndata: " % (number, self.name.encode())
            texts = (head, *encode(self.data), b"\n\n")
            is_small = sum(map(len, texts)) <= TURN
            self._pieces = (b"".join(texts),) if is_small else tuple(filter(None, texts))
        return self._pieces


class History(EventLog[Event]):
    """The last `capacity` events. With a capacity of 0 it keeps events for current readers only."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._is_replayed = capacity > 0
        self._capacity = capacity or LIVE

    def append(self, name: str, data: Any, is_last: bool = False) -> None:
        """Adds an event and wakes parked readers. The last one is always kept."""
        self.n_events += 1
        self.is_ended = is_last
        if self._is_replayed or self.n_readers or is_last:
            self._kept.append(Event(name, data, self.n_events))
            if len(self._kept) > self._capacity:
                self._kept.popleft()
        else:
            self._kept.clear()  # what is kept has no holes
        self.wake_parked()

    def cursor(self, last_number: int | None = None) -> Cursor[Event]:
        """Returns a cursor that reads the events after number `last_number`; None: from the first event on."""
        if self._is_replayed:
            return Cursor(self, min(last_number or 0, self.n_events))
        return Cursor(self, self.n_events - self.is_ended)


Item = Event | EventPiece


class EventEncoder(sse.Encoder[Item]):
    """Makes a stream of a prediction's events. That a prediction failed is an event like others."""

    def encode(self, events: list[Item]) -> bytes:
        return b"".join([event.wire for event in events])

    def encode_error(self, error: CorosrvError) -> bytes:
        return Event("error", {"error": str(error), "skipped": 0}).wire


class EventReader(LogReader[Event]):
    """A client's place among a prediction's events; see LogReader."""

    def __init__(self, history: History, after_number: int | None, on_leave: Callable[[bool], None]) -> None:
        super().__init__(history, history.cursor(after_number), on_leave)

    def gap_event(self, n_skipped: int) -> Event:
        error = "SSE stream replay truncated: this reader was behind the events that are kept"
        return Event("error", {"error": error, "skipped": n_skipped})


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def rfc3339(time: datetime) -> str:
    """Formats a time in UTC, with microseconds."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


class RecordedMetrics:
    """Values in the order in which they were first recorded. The worker has checked names and types."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def record(self, name: str, value: Any, mode: str) -> None:
        """Records a value; `mode`: replace, increment or append. None deletes the name and all names below it."""
        if value is None:
            self._delete(name)
        elif mode == "increment":
            self._values[name] = self._values.get(name, 0) + value
        elif mode == "append":
            self._append(name, value)
        else:
            # A copy: those who got this list must not see it grow.
            self._values[name] = list(value) if isinstance(value, list) else value

    def _append(self, name: str, value: Any) -> None:
        current = self._values.get(name)
        if isinstance(current, list):
            current.append(value)
        else:
            self._values[name] = [value] if current is None else [current, value]

    def _delete(self, name: str) -> None:
        for key in [key for key in self._values if key == name or key.startswith(name + ".")]:
            del self._values[key]

    def nested(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, value in self._values.items():
            *parents, last = name.split(".")
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = value
        return tree


class Status(str, Enum):
    """The state of a prediction."""

    STARTING = "starting"  # accepted, its permit is held
    PROCESSING = "processing"  # sent to the worker
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


NEXT: dict[Status, frozenset[Status]] = {
    Status.STARTING: frozenset({Status.PROCESSING, Status.FAILED, Status.CANCELED}),
    Status.PROCESSING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
}


class Change(str, Enum):
    """The changes that listeners are called for, and the values of `webhook_events_filter`."""

    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


Listener = Callable[[Change], None]


MAX_LOGS = 16 << 20  # characters of one prediction
LOGS_CUT = "\n[TRUNCATED: the prediction printed more than is kept]\n"


class Prediction:
    """One prediction: its input, state, outputs, logs and metrics. Belongs to the hub's thread; nothing here waits.

    Its greenlet moves it on; sync answers, event streams and webhooks listen, and look at it whenever they like.
    `shown_input` has stars for secrets. `is_list`: the predictor hands out members of a list, one after the other.
    """

    def __init__(
        self,
        id: str,
        input: dict[str, Any],
        shown_input: dict[str, Any],
        now: datetime,
        history: History | None = None,
        is_list: bool = False,
    ) -> None:
        self.id = id
        self.input = input
        self.status = Status.STARTING
        self.history = history
        self.is_cancel_requested = False
        self.n_bytes = 0  # of memory, about; the run adds what it receives, until the prediction ends
        self.predict_time: float | None = None  # seconds, once it has ended
        self._shown_input = shown_input
        self._is_list = is_list
        self.n_outputs = 0
        self._outputs: Any = []  # a list, or its JSON text
        self._logs: list[str] = []
        self._n_logged = 0  # characters
        self._is_log_cut = False
        self._metrics = RecordedMetrics()
        self._error: str | None = None
        self._times = {"created_at": now}
        self._listeners: list[Listener] = []

    @property
    def is_finished(self) -> bool:
        return not NEXT[self.status]

    def listen(self, listener: Listener) -> None:
        """Calls `listener` at each later change, in the order of registration; it must not wait."""
        self._listeners.append(listener)

    # What happens to it

    def begin(self, now: datetime) -> None:
        """Moves to PROCESSING: the prediction was sent to the worker."""
        self._enter(Status.PROCESSING)
        self._times["started_at"] = now
        self._record("start", {"id": self.id, "status": self.status.value})
        self._tell(Change.START)

    def become_list(self) -> None:
        """Shows the outputs as members of a list, though the predictor did not declare one."""
        self._is_list = True

    def add_output(self, value: Any) -> None:
        self._outputs.append(value)
        self._record("output", {"chunk": value, "index": self.n_outputs})
        self.n_outputs += 1
        self._tell(Change.OUTPUT)

    def add_log(self, source: str, data: str) -> None:
        """Adds printed text, up to MAX_LOGS characters; marks where the log was cut, and drops all after that."""
        if self._is_log_cut:
            return
        room = MAX_LOGS - self._n_logged
        if len(data) > room:
            data = data[:room] + LOGS_CUT
            self._is_log_cut = True
        self._n_logged += len(data)
        self._logs.append(data)
        self._record("log", {"source": source, "data": data})
        self._tell(Change.LOGS)

    def add_metric(self, name: str, value: Any, mode: str) -> None:
        self._metrics.record(name, value, mode)
        self._record("metric", {"name": name, "value": value, "mode": mode})

    def encode_outputs(self) -> None:
        """Turns large outputs into JSON text, so that whoever is shown the prediction encodes little.

        Waits while others have their turns. Nothing may be added afterwards.
        """
        outputs = self._outputs
        if self.n_outputs == 1:
            outputs[0] = split_in_turns(outputs[0], self.n_bytes)
        else:
            self._outputs = split_in_turns(outputs, self.n_bytes)

    def end(
        self,
        status: Status,
        now: datetime,
        error: str | None = None,
        predict_time: float = 0.0,
        is_list: bool | None = None,
    ) -> bool:
        """Moves to a terminal state. Only the first call counts; returns False for later ones."""
        if self.is_finished:
            return False
        self._enter(status)
        self._times["completed_at"] = now
        self._error = error
        self.predict_time = predict_time
        if is_list is not None:
            self._is_list = is_list
        if self.history is not None:
            self.history.append("completed", self.view(), is_last=True)
        self._tell(Change.COMPLETED)
        self._listeners.clear()
        return True

    def _enter(self, status: Status) -> None:
        if status not in NEXT[self.status]:
            raise IllegalTransition(f"prediction {self.id}", self.status, status)
        self.status = status

    def _record(self, name: str, data: Any) -> None:
        if self.history is not None:
            self.history.append(name, data)

    def _tell(self, change: Change) -> None:
        for listener in tuple(self._listeners):
            listener(change)

    # What it shows

    @property
    def error_type(self) -> str:
        """The name of the exception that it failed with; empty where there is none."""
        name = (self._error or "").partition(":")[0]
        return name if name.isidentifier() else ""

    @property
    def seconds(self) -> float:
        """The time from its creation to its end; 0 before that."""
        return (self._times.get("completed_at", self._times["created_at"]) - self._times["created_at"]).total_seconds()

    def view(self, with_input: bool = False) -> dict[str, Any]:
        """Returns the prediction object, to be encoded or copied at once: its lists grow while the prediction runs."""
        members: dict[str, Any] = {"id": self.id, "status": self.status.value}
        if with_input:
            members["input"] = self._shown_input
        if self.n_outputs or self.status is Status.SUCCEEDED:
            members["output"] = self._output()
        if self._error is not None:
            members["error"] = self._error
        members["logs"] = self._whole_logs()
        members["metrics"] = self._metrics.nested()
        if self.predict_time is not None:
            members["metrics"]["predict_time"] = self.predict_time
        return members | {name: rfc3339(time) for name, time in self._times.items()}

    def encoded(self, with_input: bool = False) -> list[bytes]:
        """Encodes the prediction object as JSON, in pieces. Waits while others have their turns, if it is large."""
        return encode_in_turns(self.view(with_input), self.n_bytes)

    def _output(self) -> Any:
        if self._is_list or self.n_outputs > 1:
            return self._outputs
        return self._outputs[0] if self.n_outputs else None

    def _whole_logs(self) -> str:
        if len(self._logs) > 1:
            self._logs = ["".join(self._logs)]
        return self._logs[0] if self._logs else ""
