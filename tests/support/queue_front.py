"""A front in a process of its own that shares calls through Redis; its handlers sleep and say so.

Run as `python -m tests.support.queue_front`, with a QueueFrontOptions as JSON in its only argument. It reads a command
as a line of JSON at a time, and writes what happens as lines. What handlers begin is written to a file of all fronts.
"""

from __future__ import annotations

from gevent import monkey

if __name__ == "__main__":
    monkey.patch_all()

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import gevent

from corosrv.base.errors import CallCancelled, CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs, InferRequest, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.queue_link import QueueLink
from corosrv.fleet.cluster.key_names import KeyNames, QueueNames, QueueTiming
from corosrv.formats.tensors import Tensor
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, LaneGroup, Permit, PermitPool

ROOT = Path(__file__).parent.parent.parent


@dataclass
class QueueFrontOptions:
    """What a front is started with. `slots`: calls that it runs at once; 0: it serves nothing itself."""

    url: str
    name: str
    starts: str  # file to which each start of a handler is appended
    slots: int = 1
    models: list[str] = field(default_factory=lambda: ["sleep"])  # here, and in other fronts
    max_queue: int = 100_000
    falls_back: bool = True
    timeout: float = 1.0  # of Redis
    namespace: str = "test"
    is_late: bool = False  # it does nothing until it is told to begin
    renew: float = 3.0
    claim_ms: int = 15_000
    hold_ms: int = 5_000


class SleepingCall:
    """Runs a call in a greenlet: sleeps, sends pieces, ends."""

    def __init__(self, host: SleepingHost, permit: Permit, call: HandedCall, listener: CallListener) -> None:
        self._host = host
        self._permit = permit
        self._call = call
        self._listener = listener
        self._error: CorosrvError | None = None
        self._greenlet = gevent.spawn(self._run)
        self._greenlet.rawlink(lambda greenlet: self._end())

    def cancel(self, item: int = -1, *, is_deadline: bool = False) -> None:
        self._host.note("cancelled", self._call)
        self._error = CallCancelled("cancelled")
        self._greenlet.kill(block=False)

    def _run(self) -> None:
        request = self._call.items[0].request
        n_pieces = int(request.parameters.get("pieces", 0))
        self._host.note("started", self._call)
        gevent.sleep(float(request.parameters["seconds"]))
        for number in range(n_pieces):
            size = int(request.parameters.get("bytes", 1))
            self._send(b"%d" % number + b"." * size)
            self._listener.wait_for_room()
            gevent.sleep(float(request.parameters.get("pause", 0)))
        if not n_pieces:
            self._send(request.inputs[0].data[0] if request.inputs else b"")

    def _send(self, text: bytes) -> None:
        outputs = InferOutputs((Tensor("out", "BYTES", [2], [text, self._host.name.encode()]),))
        self._listener.on_outputs(0, outputs, len(text))

    def _end(self) -> None:
        self._permit.release()
        self._listener.on_end(0, self._error)
        self._host.tell()


class SleepingHost:
    """Serves models that sleep."""

    incarnation = 1
    is_draining = False

    def __init__(self, name: str, cards: Sequence[HandlerCard], n_slots: int, starts: str) -> None:
        self.id = f"{name}/0"
        self.name = name
        self.handlers = cards
        self.groups = [LaneGroup(tuple(range(len(cards))), PermitPool(range(n_slots)))]
        self._listeners: list[Callable[[], None]] = []
        self._starts = os.open(starts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, call: HandedCall) -> None:
        line = f"{event} {call.items[0].request_id} {self.name}\n"
        os.write(self._starts, line.encode())

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> SleepingCall:
        return SleepingCall(self, permit, call, listener)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def tell(self) -> None:
        for listener in self._listeners:
            listener()


class QueueFront:
    """Is what runs in the process."""

    def __init__(self, options: QueueFrontOptions) -> None:
        self._options = options
        self._client = RedisClient(options.url, options.timeout)
        names = QueueNames(KeyNames(options.namespace), f"{options.name}-{os.getpid()}")
        timing = QueueTiming(renew=options.renew, claim_ms=options.claim_ms, hold_ms=options.hold_ms)
        self._link = QueueLink(self._client, names, timing)
        self._dispatcher = Dispatcher()
        self._readers: dict[str, Any] = {}
        self._n_submitted = 0
        cards = [
            HandlerCard(name, is_idempotent=name != "sleep", is_stream=name == "stream", max_queue=options.max_queue)
            for name in options.models
        ]
        if options.slots:
            self._dispatcher.add_host(SleepingHost(options.name, cards, options.slots, options.starts))
        self._dispatcher.expect("other", cards, is_elsewhere=True)
        queue = self._link.add(
            "app", self._dispatcher, max_calls=100_000, max_bytes=1 << 30, falls_back=options.falls_back
        )
        self._dispatcher.share(queue)

    def run(self) -> None:
        lines = gevent.get_hub().threadpool
        if self._options.is_late:
            lines.apply(sys.stdin.readline)
        self._client.ping()
        self._client.start()
        self._link.start()
        say(event="ready")
        while line := lines.apply(sys.stdin.readline):
            command = json.loads(line)
            getattr(self, command.pop("do"))(**command)

    def submit(self, id: str, model: str = "sleep", **options: Any) -> None:
        gevent.spawn(self._call, id, model, options)

    def _call(self, id: str, model: str, options: dict[str, Any]) -> None:
        deadline = time.monotonic() + options["timeout"] if "timeout" in options else None
        terms = Terms(request_id=id, deadline=deadline, priority=options.get("priority", 5))
        text = Tensor("text", "BYTES", [1], [b"x" * options.get("size", 1)])
        parameters = {name: options.get(name, 0) for name in ("seconds", "pieces", "bytes", "pause")}
        job = InferJob(ModelTarget(model), InferRequest((text,), id, parameters), model == "stream", terms)
        pieces: list[str] = []
        try:
            reader = self._readers[id] = self._dispatcher.submit(job)
            self._n_submitted += 1
            while items := reader.take():
                for item in items:
                    if isinstance(item, InferEnd):
                        say(event="end", id=id, pieces=pieces, **_said(item.error))
                    else:
                        data = item.outputs[0].data
                        pieces.append(f"{len(data[0])} {data[1].decode()}")
                        if pieces[1:] == [] and model == "stream":
                            say(event="begun", id=id, by=data[1].decode())
                gevent.sleep(options.get("reads_each", 0))
        except CorosrvError as error:
            say(event="end", id=id, pieces=pieces, **_said(error))
        finally:
            self._readers.pop(id, None)

    def cancel(self, id: str) -> None:
        self._readers[id].cancel()

    def count(self) -> None:
        accepted, deliveries = self._link.accepted, self._link.deliveries
        say(
            event="count",
            submitted=self._n_submitted,
            accepted=len(accepted),
            sending=accepted.n_sending,
            running=len(deliveries),
        )


def _said(error: CorosrvError | None) -> dict[str, Any]:
    if error is None:
        return {"status": 200, "words": "", "retry_after": None}
    return {"status": error.status, "words": str(error), "retry_after": error.retry_after}


def say(**members: Any) -> None:
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()


class FrontProcess:
    """Drives such a process from a test."""

    def __init__(self, options: QueueFrontOptions) -> None:
        self.options = options
        command = [sys.executable, "-m", "tests.support.queue_front", json.dumps(asdict(options))]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=ROOT, text=True, bufsize=1
        )
        self.ends: dict[str, dict[str, Any]] = {}
        self.n_ends = 0
        self._events: Queue[dict[str, Any]] = Queue()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put({"event": "gone"})

    def send(self, do: str, **members: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **members}) + "\n")

    def submit(self, id: str, **options: Any) -> None:
        self.send("submit", id=id, **options)

    def await_event(self, event: str, timeout: float = 60.0, **members: Any) -> dict[str, Any]:
        """Returns the next event of this kind with these members; ends on the way are kept in `ends`."""
        ends_at = time.monotonic() + timeout
        while True:
            try:
                said = self._events.get(timeout=max(ends_at - time.monotonic(), 0.001))
            except Empty:
                raise AssertionError(f"no event {event} {members} within {timeout} s") from None
            if said["event"] == "end":
                self.n_ends += 1
                self.ends[said["id"]] = said
            if said["event"] == event and all(said.get(name) == value for name, value in members.items()):
                return said
            assert said["event"] != "gone", "the front has ended"

    def count(self) -> dict[str, Any]:
        """Returns how many calls it has in the queue, and runs out of it."""
        self.send("count")
        return self.await_event("count")

    def end_of(self, id: str, timeout: float = 60.0) -> dict[str, Any]:
        """Waits for the end of a call."""
        return self.ends[id] if id in self.ends else self.await_event("end", timeout, id=id)

    @property
    def log(self) -> str:
        """What it has logged."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def kill(self) -> None:
        """Ends it as kill -9 does, and shows what it has logged."""
        self.process.kill()
        self.process.wait(20)
        self._thread.join(20)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # of what could not be written
                    pipe.close()
        if not self._log.closed:
            print(self.log, file=sys.stderr, end="")
            self._log.close()


if __name__ == "__main__":
    QueueFront(QueueFrontOptions(**json.loads(sys.argv[1]))).run()
