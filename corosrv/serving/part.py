"""The base of a server's parts, such as its models or its predictor, and what the parts of one server share."""
# ruff: noqa: B027 - a part overrides only what it has

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import flask
import gevent
from flask import Blueprint
from gevent import monkey
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.infer import InferJob, InferWorker
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import Settings
from corosrv.web.accounts import Accounts
from corosrv.web.groups import GroupTable
from corosrv.web.http.access_log import Tracer
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.siblings import OtherAnswer, Siblings
from corosrv.web.http.sse import StreamLimits
from corosrv.web.kept.keyed_answers import KeyedAnswers

if TYPE_CHECKING:  # a server without handlers needs none of it
    from corosrv.workers.worker.parent.call_services import CallAnswers, Delegate

Format = Literal["openai", "anthropic", "llamacpp", "ollama", "upstream", "v2", "predictions"]


class Part(ABC):
    """One kind of work that a server takes, with its endpoints. A part overrides what it has."""

    formats: Iterable[Format] = ()  # that it speaks, as peers name them; see corosrv.gateway.delegation.announcement
    _ending: gevent.Greenlet | None = None  # after stop(), where the end takes its time

    def model_names(self) -> Iterable[str]:
        """Returns the names of the models that it serves in generating dialects."""
        return ()

    @property
    def held_bytes(self) -> int:
        """Bytes that it claims of the memory which models and workers share."""
        return 0

    @property
    def state(self) -> State:
        return State.READY

    def check(self) -> None:
        """Raises the Unavailable that work would meet now."""

    def stats(self) -> DecodeStats | None:
        """Returns the counters of the part's decode loop; None without one."""
        return None

    def start(self) -> None:
        """Begins to load what the part needs, in the process that will serve; returns at once."""

    def stop(self) -> None:
        """Refuses new work and lets running work end in its time; a second call ends it at once. Never waits."""

    @property
    def is_ending(self) -> bool:
        """True after stop() while something still runs that is no request."""
        return self._ending is not None and not self._ending.ready()

    def hurry(self) -> None:
        """Ends what still runs. Returns at once."""

    def close(self) -> None:
        """Ends everything; may wait for the step in progress. Twice is harmless."""

    def collectors(self) -> Iterable[Collector]:
        """Returns the part's counters, for /metrics."""
        return ()

    def apis(self) -> Iterable[Blueprint]:
        """Returns the part's routes for operators."""
        return ()

    def blueprints(self) -> Iterable[Blueprint]:
        """Returns the part's routes."""
        return ()

    def document(self) -> dict[str, Any] | None:
        """Returns the part's own OpenAPI document; None where its routes say everything.

        Raises Unavailable until it is known.
        """
        return None

    def has_path(self, path: str) -> bool:
        """Tells whether errors at this path have the part's shape, whether or not there is such a route."""
        return False

    @abstractmethod
    def error_body(self, error: CorosrvError, path: str) -> Any:
        """Makes the body of an error of a request to this path, in the shape that its clients expect."""


def why_not_served(work: str) -> str:
    """Returns why this web server cannot serve a kind of work that needs a hub for all requests; "" if it can."""
    if monkey.is_module_patched("socket"):
        return ""
    return f"{work} need a server that waits through gevent: gunicorn -k gevent"  # each request has a thread, or none


@dataclass(eq=False, kw_only=True)
class ServerContext:
    """The state that the parts of one server share, and the parts themselves once all are made."""

    settings: Settings
    is_mounted: bool = False  # in somebody's own app
    http_stats: HttpStats
    bodies: BodyReader
    answers: KeyedAnswers  # those that are kept under idempotency keys
    groups: GroupTable  # those that requests are in
    accounts: Accounts  # of the API keys that are let in
    parts: list[Part] = field(default_factory=list)  # the first one's form has an error at a path that is no part's
    calls: InferWorker | None = None  # runs what handlers call, and calls of the v2 protocol
    delegate: Delegate | None = None  # gives these calls to peers, but for requests over HTTP, whose hook does
    on_shutdown: Callable[[], None] = lambda: None  # what POST /shutdown does
    on_unstartable: Callable[[str], None] = lambda reason: None  # called if nothing can be started
    # Connections and the greenlets that serve them; None where the web server does not tell.
    count_clients: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
    tracer: Tracer | None = None  # where requests are traced
    siblings: Siblings | None = None  # the other worker processes, where there are some

    @property
    def streams(self) -> StreamLimits:
        """The limits of the server's streams."""
        server = self.settings.server
        return StreamLimits(self.http_stats, server.sse_ping_interval, server.write_timeout_s)

    def ask_other_workers(self, request: flask.Request, body: bytes = b"", path: str = "") -> list[OtherAnswer]:
        """Sends a request to every other worker process as well; returns their answers. See Siblings.ask_others."""
        return [] if self.siblings is None else self.siblings.ask_others(request, body, path)

    def ask_peers(self, job: InferJob, error: CorosrvError) -> CallAnswers | None:
        """Returns a peer's answers to a call that ended in this error here; None if the error stands. Never waits."""
        return None if self.delegate is None else self.delegate(job, error)

    def other_parts(self, part: Part) -> list[Part]:
        """Returns the parts beside this one."""
        return [one for one in self.parts if one is not part]

    @property
    def state(self) -> State:
        """READY if every part is ready, otherwise the state of the first part that is not."""
        states = [part.state for part in self.parts]
        return next((state for state in states if state is not State.READY), State.READY)

    def check(self) -> None:
        """Raises the Unavailable that work would meet now."""
        for part in self.parts:
            part.check()

    def stats(self) -> DecodeStats | None:
        """Returns the counters of the first decode loop; None where no part has one."""
        return next((stats for part in self.parts if (stats := part.stats()) is not None), None)

    def part_of(self, path: str) -> Part:
        """Returns the part whose form of errors a client expects at this path."""
        # The first part takes what no other has.
        return next((part for part in reversed(self.parts) if part.has_path(path)), self.parts[0])

    def error_body(self, error: CorosrvError, path: str) -> Any:
        """Makes the body of an error of a request to this path, in the shape that the path asks for."""
        return self.part_of(path).error_body(error, path)
