"""The other ends of calls in the shared queue, driven by hand: Redis, and whoever listens to a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gevent.event import AsyncResult, Event

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import InferOutputs
from corosrv.fleet.cluster.queue_names import KeyNames, QueueNames
from corosrv.fleet.cluster.script_runner import OnReply, ignore
from corosrv.workers.dispatch.host import CallListener
from tests.support.waiting import wait_until

NAMES = QueueNames(KeyNames("test"), "here")


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script that was to run, to which a test replies."""

    text: str
    keys: Sequence[str]
    arguments: Sequence[Any]
    reply: OnReply


class HandDrivenRunner:
    """A ScriptRunner that runs nothing: it keeps each script, and a test replies."""

    is_closed = False

    def __init__(self) -> None:
        self.runs: list[ScriptRun] = []

    def submit(self, text: str, keys: Sequence[str], arguments: Sequence[Any], on_reply: OnReply = ignore) -> None:
        self.runs.append(ScriptRun(text, keys, arguments, on_reply))

    def run(self, text: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        result: AsyncResult[Any] = AsyncResult()
        self.submit(text, keys, arguments, result.set)
        reply = result.get(timeout=60)
        if isinstance(reply, CorosrvError):
            raise reply
        return reply

    def of(self, text: str) -> list[ScriptRun]:
        """Returns the runs of a script, in their order."""
        return [run for run in self.runs if run.text == text]

    def await_run(self, text: str, number: int = 1) -> ScriptRun:
        """Waits until a script was to run so many times, and returns the last."""
        return wait_until(lambda: len(self.of(text)) >= number, f"run {number}") and self.of(text)[number - 1]


class Heard(CallListener):
    """Keeps what a call sends, and has room when a test says so."""

    def __init__(self) -> None:
        self.outputs: list[InferOutputs] = []
        self.ends: list[CorosrvError | None] = []
        self.room = Event()

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None:
        self.outputs.append(outputs)

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        self.ends.append(error)

    def wait_for_room(self) -> None:
        self.room.wait(60)
