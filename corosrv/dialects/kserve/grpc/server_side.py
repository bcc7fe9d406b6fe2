"""The server's side of one gRPC process: its start, its lane, its lease, its end, and the numbers of its calls."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import ChannelClosed, CorosrvError, FrameTooLarge, HandlerFailed
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.kserve.grpc.messages import (
    HEARTBEAT,
    MAX_BYTES,
    MAX_CALLS,
    MAX_MESSAGE,
    AskInfo,
    ControlFromGrpc,
    ControlToGrpc,
    GrpcCounts,
    GrpcHeartbeat,
    GrpcServing,
    InfoAnswer,
    InitGrpc,
    LaneFromGrpc,
    LaneToGrpc,
    StopGrpc,
)
from corosrv.web.inference_gateway import GatewayRules
from corosrv.web.keys import KeyRing
from corosrv.workers.wire.calls import AskEnd, AskOutputs
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.parent.asks import Asks
from corosrv.workers.worker.parent.call_services import CallServices, end_of
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.supervised import ServingProcess

log = logging.getLogger("corosrv.grpc")


class GrpcStats:
    """Sums what all gRPC processes of a front have counted. Belongs to the hub's thread."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()  # by method and code
        self.n_streams = 0  # that are open

    def add(self, counts: GrpcCounts) -> None:
        """Adds what a process tells."""
        for method, code, n in counts.ended:
            self.ended[method, code] += n
        self.n_streams = counts.n_streams

    def forget_streams(self) -> None:
        """Counts no stream as open: their process has ended."""
        self.n_streams = 0


class GrpcCollector(Collector):
    """Reads the numbers at each scrape."""

    def __init__(self, stats: GrpcStats) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        calls = CounterMetricFamily("corosrv_grpc_calls", "Ended calls by method and code", labels=["method", "code"])
        for (method, code), n in sorted(self._stats.ended.items()):
            calls.add_metric([method, code], n)
        yield calls
        streams = GaugeMetricFamily("corosrv_grpc_open_streams", "Open streams of ModelStreamInfer")
        streams.add_metric([], self._stats.n_streams)
        yield streams


START = 60.0  # seconds that a process may take until it serves
MISSED_BEATS = 8  # heartbeats in a row that did not come: the process hangs
FAREWELL = 5.0  # seconds beyond the grace that a process may take to end

Inform = Callable[[AskInfo], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class GrpcConfig:
    """The settings of the gRPC process."""

    address: str = "127.0.0.1"
    port: int = 0  # 0: any
    keys: tuple[str, ...] = ()  # that are let in; none: nobody needs one
    asks_keys: bool = False  # others may be let in: see CallServices.accounts
    max_message: int = MAX_MESSAGE  # bytes
    max_calls: int = MAX_CALLS  # calls and streams that may be open at once
    max_bytes: int = MAX_BYTES  # that all requests may take in memory
    gateway: GatewayRules = field(default_factory=GatewayRules)  # whose metadata says whose share a call takes
    env: Mapping[str, str] | None = None  # of the process, all of it; None: as the server's
    command: tuple[str, ...] = (sys.executable, "-m", "corosrv.dialects.kserve.grpc")


class GrpcLink(ServingProcess[ControlToGrpc, ControlFromGrpc, LaneToGrpc, LaneFromGrpc]):
    """One gRPC process, whose asks are answered."""

    _log = log
    name = "the gRPC process"

    def __init__(self, config: GrpcConfig, services: CallServices, inform: Inform, stats: GrpcStats) -> None:
        control: StructCodec[ControlToGrpc, ControlFromGrpc] = StructCodec(ControlFromGrpc, msgspec.msgpack)
        lane: StructCodec[LaneToGrpc, LaneFromGrpc] = StructCodec(LaneFromGrpc, msgspec.msgpack)
        super().__init__(control, lane, takes_fds=True)
        self._config = config
        self._answer_info = inform
        self._stats = stats
        self._asks = Asks(services, self._send, limit=sys.maxsize, is_trusted=True)
        self._watching: gevent.Greenlet | None = None
        self._n_missed = 0  # heartbeats
        self.port = config.port
        self.refused_to_start = False  # it said itself why it cannot serve

    @property
    def n_running(self) -> int:
        """The number of calls that run for its clients."""
        return self._asks.n_running

    def start(self) -> None:
        config = self._config
        digests = list(KeyRing.of_keys(config.keys).digests)
        try:
            self._link.start(config.command, config.env)
            limits = config.max_message, config.max_calls, config.max_bytes
            rules = config.gateway, config.asks_keys
            self._link.open_lanes(1, InitGrpc(config.address, config.port, digests, *limits, *rules))
        except OSError as error:
            self._link.kill()
            self._enter(WorkerState.SETUP_FAILED, f"the gRPC process could not be started: {error}")
            return
        self._limit_setup(START, self.kill, f"it did not serve within {START:g} s")

    def _watch(self) -> None:
        """Ends a process that hangs."""
        # Turns are counted and not seconds: after this process itself was stopped, all beats are there at once.
        while self._n_missed < MISSED_BEATS:
            gevent.sleep(HEARTBEAT)
            self._n_missed += 1
        self.kill(f"it said nothing for {MISSED_BEATS * HEARTBEAT:g} s")

    # What the process says.

    def on_control(self, message: ControlFromGrpc) -> None:
        match message:
            case GrpcHeartbeat():
                self._n_missed = 0
            case GrpcCounts():
                self._stats.add(message)
            case GrpcServing():
                self.port = message.port
                self._enter(WorkerState.READY)
                self._watching = gevent.spawn(self._watch)
            case _:
                self.refused_to_start = True
                self._enter(WorkerState.SETUP_FAILED, message.error)

    def on_lane(self, lane: int, message: LaneFromGrpc, n_bytes: int) -> None:
        fds = self._link.lanes[lane].take_fds()
        if isinstance(message, AskInfo):
            gevent.spawn(self._inform, message)  # a peer may have to be asked
        else:
            self._asks.on_message(message, fds)

    def _inform(self, ask: AskInfo) -> None:
        with contextlib.suppress(ChannelClosed):  # the process has ended
            try:
                self._send(self._answer(ask))
            except FrameTooLarge:
                self._send(end_of(ask.number, None, HandlerFailed("what a peer says of the model is too long")))

    def _answer(self, ask: AskInfo) -> InfoAnswer | AskEnd:
        try:
            return InfoAnswer(ask.number, self._answer_info(ask))
        except CorosrvError as error:
            return end_of(ask.number, None, error)
        except Exception:
            log.exception("a question of the gRPC process could not be answered")
            return end_of(ask.number, None, HandlerFailed("the call failed; the server's log says why"))

    def on_lane_broken(self, lane: int, fault: str) -> None:
        self.kill(fault)

    def on_end(self, exit: Exit, fault: str) -> None:
        self._asks.close()
        self._stats.forget_streams()
        if self._watching is not None:
            self._watching.kill(block=False)
        super().on_end(exit, fault)

    def _send(self, message: LaneToGrpc | AskOutputs | AskEnd, fds: Sequence[int] = ()) -> None:
        self._link.lanes[0].send(message, fds)

    # Its end.

    def stop(self, timeout: float) -> None:
        """Refuses new calls, lets running ones end within `timeout` seconds, and ends the process. Waits."""
        self._is_stopping = True
        if self._stop_unstarted():
            return
        with contextlib.suppress(ChannelClosed):  # it has ended already
            self._link.control.send(StopGrpc(timeout))
        self._link.end_within(timeout + FAREWELL)
