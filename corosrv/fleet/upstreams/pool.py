"""Adds, probes, drains and removes the upstreams of a server, while calls wait for them and run on them."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gevent
from gevent import Greenlet

from corosrv.base.errors import CorosrvError, ModelNotFound, NotFound, ShuttingDown, Starting
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.infer import ForwardRequest, HandlerCard, InferJob, InferOutputs, InferReader, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.upstreams import failures
from corosrv.fleet.upstreams.exchange import TIME_LIMIT, ExchangeLimits
from corosrv.fleet.upstreams.policies import rank_name, upstream_id
from corosrv.fleet.upstreams.prober import ListedModels, Prober
from corosrv.fleet.upstreams.spec import UpstreamSpec
from corosrv.fleet.upstreams.upstream import ANY_MODEL, POOL, Upstream, UpstreamHost, model_card
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedItem
from corosrv.workers.dispatch.policy import DispatchSettings

log = logging.getLogger("corosrv.upstreams")

DRAIN_TIMEOUT = 60.0  # seconds that the calls of a removed upstream may go on
LISTING_INTERVAL = 60.0  # seconds between two looks at an upstream's models


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPoolSettings:
    """Settings of the upstreams of a server; times in seconds, sizes in bytes."""

    limits: ExchangeLimits = field(default_factory=ExchangeLimits)
    max_queue: int = 10_000  # calls that may wait
    queue_bytes: int = 268_435_456  # that the bodies of waiting calls may take
    calls_per_caller: int = 0  # calls that may wait and run of one API key; 0: no limit
    patience: float = 30.0  # that a call waits while no upstream is ready
    drain: float = 25.0  # that running calls get to finish after a stop
    is_elastic: bool = False  # calls wait even if no upstream is known yet
    is_strict: bool = False  # an unknown model is an error even if there is a single one
    logs_json: bool = False


@dataclass(slots=True)
class _PoolMember:
    """Holds an upstream and what belongs to its entry in the pool."""

    upstream: Upstream
    prober: Prober
    probing: Greenlet | None = None
    host: UpstreamHost | None = None  # what the dispatcher knows of it
    incarnation: int = 0
    listed_at: float = -math.inf
    down_since: float = field(default_factory=time.monotonic)  # while no probe goes well
    is_given_up: bool = False  # it is down, or has asked for a pause, for so long that no call waits for it
    pause: int | None = None  # seconds of such a pause that are left
    leaving: Greenlet | None = None


class UpstreamPool:
    """Forwards calls to upstreams, which come and go. Belongs to the hub's thread."""

    def __init__(
        self, settings: UpstreamPoolSettings, make_dispatcher: Callable[[DispatchSettings], Dispatcher] = Dispatcher
    ) -> None:
        self._settings = settings
        self.dispatcher = make_dispatcher(
            DispatchSettings(
                max_calls=settings.max_queue,
                max_bytes=settings.queue_bytes,
                calls_per_caller=settings.calls_per_caller,
                logs_json=settings.logs_json,
            )
        )
        self._members: dict[str, _PoolMember] = {}  # by id
        self._models: tuple[str, ...] | None = None  # of all upstreams; None until it is asked for after a change
        self._is_started = False
        self._is_stopping = False
        self._ending: Greenlet | None = None
        self.on_add: Callable[[Upstream], None] = lambda upstream: None  # called before a new one gets calls
        self.on_leave: Callable[[Upstream], None] = lambda upstream: None  # called when one is gone

    # The life of the pool.

    def start(self) -> None:
        """Begins to probe. Twice is harmless."""
        if not self._is_started and not self._is_stopping:
            self._is_started = True
            self._expect()
            for member in self._members.values():
                member.probing = gevent.spawn(self._probe_on, member)

    def stop(self) -> None:
        """Refuses new calls and lets running ones end in their time; a second call ends them at once. Never waits."""
        if self._is_stopping:
            self.hurry()
            return
        self._is_stopping = True
        self.dispatcher.shut_down()
        self._ending = gevent.spawn(self._end)

    def _end(self) -> None:
        if not self.dispatcher.drain(self._settings.drain):
            log.warning("cancelling upstream calls that did not finish within %g s", self._settings.drain)
        self.dispatcher.close()
        gevent.idle()  # their greenlets end, and send what aborts them
        for upstream in self.upstreams:
            upstream.aborter.wait(TIME_LIMIT)

    @property
    def is_ending(self) -> bool:
        """Tells whether stop() was called and something still runs."""
        return self._ending is not None and not self._ending.ready()

    def hurry(self) -> None:
        """Ends what still runs. Never waits."""
        self.dispatcher.close()

    def close(self) -> None:
        """Ends everything. Twice is harmless."""
        self._is_stopping = True
        self.dispatcher.close()
        for member in list(self._members.values()):
            self._leave(member)

    @property
    def state(self) -> State:
        if self._is_stopping:
            return State.DRAINING
        # One that waits for trials counts: without calls, which come to ready servers only, it would wait for ever.
        is_ready = any(member.upstream.is_worth_waiting for member in self._members.values())
        is_usable = is_ready or self._settings.is_elastic
        return State.READY if is_usable else State.STARTING

    def check(self) -> None:
        """Raises the Unavailable that a call would meet now, if it did not wait."""
        state = self.state
        if state is State.DRAINING:
            raise ShuttingDown("the server is shutting down")
        if state is State.STARTING:
            # Where they are, and why, is not for clients: the log and the management API say it.
            raise Starting("no upstream is ready")

    # Its upstreams.

    @property
    def upstreams(self) -> Sequence[Upstream]:
        """Returns those that are not gone, in the order in which they were added."""
        return [member.upstream for member in self._members.values()]

    def add(self, spec: UpstreamSpec) -> tuple[Upstream, bool]:
        """Adds an upstream, which gets calls once a probe of it has gone well. Never waits.

        Returns it, and whether it is new: the same URL is the same upstream until it drains. Raises ShuttingDown.
        """
        if self._is_stopping:
            raise ShuttingDown("the server is shutting down")
        for member in self._members.values():
            if member.upstream.spec.url == spec.url and not member.upstream.is_draining:
                return member.upstream, False
        upstream = Upstream(upstream_id(spec.url, self._members), spec, self._settings.limits)
        member = self._members[upstream.id] = _PoolMember(upstream, Prober(upstream))
        upstream.on_pause = lambda: self._give_up_or_not(member, False, time.monotonic())
        self.on_add(upstream)
        self._models = None
        words = "calls at once" if spec.concurrency else "calls at once unless it names another number"
        log.info("upstream %s added: %s, %d %s", upstream.id, spec.url, upstream.concurrency, words)
        if self._is_started:
            self._expect()
            member.probing = gevent.spawn(self._probe_on, member)
        return upstream, True

    def find(self, name: str) -> Upstream:
        """Returns the upstream with this id or URL, one that does not drain if there is one. Raises NotFound."""
        upstreams = [upstream for upstream in self.upstreams if name in (upstream.id, upstream.spec.url)]
        if not upstreams:
            raise NotFound(f"there is no upstream {name[:200]!r}", "id", "upstream_not_found")
        return min(upstreams, key=lambda upstream: upstream.is_draining)

    def remove(self, upstream: Upstream, *, abort: bool = False, timeout: float = DRAIN_TIMEOUT) -> None:
        """Gives an upstream no more calls, and removes it when its calls have ended. Never waits.

        They are ended after `timeout` seconds, with `abort` at once. Twice is harmless; the second may abort.
        """
        member = self._members.get(upstream.id)
        if member is None:
            return
        log.info("upstream %s leaves: %s", upstream.id, upstream.spec.url)
        upstream.is_draining = True
        upstream.changed()
        self._expect()
        if abort:
            upstream.abort()
        if member.leaving is None:
            member.leaving = gevent.spawn(self._drain, member, 0.0 if abort else timeout)
        elif abort:
            member.leaving.kill(block=False)
            member.leaving = gevent.spawn(self._drain, member, 0.0)

    def _drain(self, member: _PoolMember, timeout: float) -> None:
        upstream = member.upstream
        if not upstream.wait_idle(timeout):
            upstream.abort()
            upstream.wait_idle(1.0)  # their greenlets end in the next turns of the hub
        upstream.aborter.wait(TIME_LIMIT)
        self._leave(member)

    def _leave(self, member: _PoolMember) -> None:
        upstream = member.upstream
        upstream.abort()
        if member.host is not None:
            self.dispatcher.remove_host(member.host)
            member.host = None
        if member.probing is not None:
            member.probing.kill(block=False)
        member.prober.close()
        upstream.close()
        self._models = None
        if self._members.pop(upstream.id, None) is not None:
            self.dispatcher.forget(upstream.id)
            self.on_leave(upstream)

    # Probes.

    def _probe_on(self, member: _PoolMember) -> None:
        upstream = member.upstream
        while not upstream.is_gone:
            try:
                self._probe(member)
            except Exception:
                log.exception("upstream %s could not be probed, by a bug", upstream.id)
            # No sooner, whatever it answers; then when the time has come, or an answer of it calls for a probe.
            gevent.sleep(min(failures.SHORTEST_PROBE_INTERVAL, upstream.probes.interval))
            upstream.has_doubt.wait(max(upstream.probes.interval - failures.SHORTEST_PROBE_INTERVAL, 0.0))

    def _probe(self, member: _PoolMember) -> None:
        upstream = member.upstream
        upstream.has_doubt.clear()
        began_at = time.monotonic()
        probe = member.prober.probe()
        failure = probe.failure
        is_due = not upstream.probes.is_up or time.monotonic() - member.listed_at >= LISTING_INTERVAL
        # Asked before the upstream is called ready, which is then true of its models as well.
        listed = member.prober.models() if is_due and not failure else None
        n_calls = member.prober.room() if is_due and not failure else None
        if upstream.is_gone:
            return
        upstream.set_room(n_calls)
        now = time.monotonic()
        has_changed = upstream.probes.note(failure, began_at if probe.is_unanswered else None)
        upstream.settle_doubts(failure)
        upstream.end_silent_calls(upstream.probes.silent_since)
        upstream.connections.close_idle()
        self._give_up_or_not(member, has_changed, now)
        if upstream.probes.is_up and is_due:
            member.listed_at = now
            self._offer(member, listed or ListedModels(None, upstream.is_sglang))
        if has_changed:
            if upstream.probes.is_up:
                log.info("upstream %s is ready and serves %s", upstream.id, _list_of(upstream.models))
            else:
                log.warning("upstream %s is not well: %s", upstream.id, upstream.probes.reason)
            upstream.changed()

    def _give_up_or_not(self, member: _PoolMember, has_changed: bool, now: float) -> None:
        """Refuses calls that wait for an upstream which was down for `patience` seconds, or asks for a longer pause."""
        upstream, patience = member.upstream, self._settings.patience
        if has_changed and not upstream.probes.is_up:
            member.down_since = now
        pause = upstream.breaker.pause_left(now)
        before = member.is_given_up, member.pause
        member.pause = math.ceil(pause) if pause > patience else None
        is_down = not upstream.probes.is_up and now - member.down_since >= patience
        member.is_given_up = is_down or member.pause is not None
        if before != (member.is_given_up, member.pause):
            self._expect()

    def _offer(self, member: _PoolMember, models: ListedModels) -> None:
        """Offers the models that an upstream lists, or those that it listed before."""
        upstream = member.upstream
        upstream.is_sglang = models.is_sglang
        if member.host is not None and models.names in (None, upstream.models):
            return
        upstream.models = models.names or upstream.models
        member.incarnation += 1
        member.host = UpstreamHost(upstream, member.incarnation)
        self._expect()
        self.dispatcher.add_host(member.host)

    def _expect(self) -> None:
        """Tells the dispatcher what may be asked for, and whether it is worth waiting."""
        self._models = None
        self.dispatcher.expect(
            POOL,
            _cards(self.models()),
            can_start=self._settings.is_elastic and not self._all_pause(),
            reason="no upstream is ready",
            patience=self._settings.patience,
        )
        for member in self._members.values():
            self._expect_member(member)

    def _expect_member(self, member: _PoolMember) -> None:
        upstream = member.upstream
        self.dispatcher.expect(
            upstream.id,
            _cards(upstream.models),
            can_start=not upstream.is_draining and not member.is_given_up,
            patience=self._settings.patience,
            retry_after=member.pause,
        )

    def _all_pause(self) -> bool:
        """Returns whether all upstreams, and one at least, have asked for a pause for which no call waits."""
        return bool(self._members) and all(member.pause is not None for member in self._members.values())

    # Calls.

    def models(self) -> tuple[str, ...]:
        """Returns the names that may be asked for, those of the first upstream first."""
        if self._models is None:
            models = (upstream.models for upstream in self.upstreams if not upstream.is_draining)
            self._models = tuple(dict.fromkeys(itertools.chain.from_iterable(models)))
        return self._models

    def submit(self, model: str | None, request: ForwardRequest, terms: Terms, keeper: str = "") -> InferReader:
        """Forwards a request, now or when an upstream has a free permit. Never waits.

        `keeper`: the id of the upstream that keeps what the request goes on from, which alone gets it unless it has
        left. Its reader gives an AnswerHead, then AnswerBody pieces, then the InferEnd. Raises ModelNotFound,
        Unavailable, QueueFull and DeadlinePassed.
        """
        target = ModelTarget(self.resolve(model))
        only = self._current(keeper) if keeper else ""
        return self.dispatcher.submit(InferJob(target, request, stream=True, terms=terms, only_host=only))

    def _current(self, id: str) -> str:
        """Returns the id that the upstream of this id has by now: another if its URL was added again."""
        same = [member.upstream for member in self._members.values() if rank_name(member.upstream.id) == rank_name(id)]
        return min(same, key=lambda upstream: upstream.is_draining).id if same else ""

    def ask(self, upstream: str, request: ForwardRequest, terms: Terms) -> InferReader:
        """Forwards a question about what the upstream of this id keeps, as `submit` does a request. Never waits.

        Raises NotFound where that upstream has left, and QueueFull.
        """
        member = self._members.get(self._current(upstream))
        if member is None:
            raise NotFound("the upstream that keeps it has left", "id", "upstream_not_found")
        return _Question(member.upstream, request, terms).reader

    def abort(self, request_id: str = "") -> int:
        """Ends the calls that wait or run, or those of one request id, and returns how many. Upstreams stay."""
        return self.dispatcher.abort_calls(lambda terms: request_id in ("", terms.request_id))

    def resolve(self, model: str | None) -> str:
        """Returns the name by which the dispatcher knows a model. Raises ModelNotFound."""
        names = self.models()
        if not names:
            return ANY_MODEL
        if model is None:
            return names[0]
        if model in names:
            return model
        if len(names) == 1 and not self._settings.is_strict:
            return names[0]
        raise ModelNotFound(model)


class _Question(CallListener):
    """Passes what an upstream answers to a question on to its reader."""

    def __init__(self, upstream: Upstream, request: ForwardRequest, terms: Terms) -> None:
        item = HandedItem(request, terms.deadline, terms.request_id, terms.caller, terms.priority, terms.trace)
        self.reader = HandlerReader(model_card(ANY_MODEL), lambda: self._running.cancel())
        self._running = upstream.ask(item, self)

    def on_outputs(self, item: int, outputs: InferOutputs, n_bytes: int) -> None:
        self.reader.add(outputs, n_bytes)

    def on_end(self, item: int, error: CorosrvError | None) -> None:
        self.reader.end(error)

    def wait_for_room(self) -> None:
        self.reader.wait_for_room()


def _cards(models: Sequence[str]) -> list[HandlerCard]:
    return [model_card(name) for name in (ANY_MODEL, *models)]


def _list_of(models: Sequence[str]) -> str:
    """Names models in a line of the log."""
    return ", ".join(models[:10]) + (f" and {len(models) - 10} more" if len(models) > 10 else "") or "any model"
