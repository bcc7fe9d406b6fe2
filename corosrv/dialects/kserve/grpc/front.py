"""The server's side of gRPC: `GrpcFront` keeps a process running, and replaces it when it dies.

`GrpcLink` is one life of it: its start, its lane, its lease, its end. What it asks without running anything, such as
metadata, is answered by `ServerInfo` with the bodies of REST.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gevent
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import (
    ChannelClosed,
    CorosrvError,
    FrameTooLarge,
    HandlerFailed,
    NotFound,
    SettingsError,
    Unavailable,
)
from corosrv.contracts.jobs.infer import AnswerBody, ForwardRequest, InferEnd, InferJob, InferWorker, ModelTarget
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.jobs.terms import Terms
from corosrv.dialects.kserve import metadata
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
from corosrv.workers.worker.parent.call_services import CallAccount, CallServices, end_of
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.supervised import ServingProcess, SupervisedProcess

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


_NOT_HERE = ("binary_tensor_data", "generate")  # extensions of REST alone
_PATIENCE = 10.0  # seconds in which a peer is to say something about a model


class ServerInfo:
    """Tells about the server, the models of a worker, and those of peers, for whose answer alone it waits."""

    def __init__(self, worker: InferWorker, check_ready: Callable[[], None], services: CallServices) -> None:
        """`check_ready` raises the Unavailable that calls would meet now."""
        self._worker = worker
        self._services = services
        self._check_ready = check_ready

    def __call__(self, ask: AskInfo) -> dict[str, Any]:
        """Returns the body of the answer. May wait for a peer. Raises NotFound, and what a peer answers; Unauthorized
        and LimitReached for an API key."""
        account = (
            None if self._services.accounts is None or not ask.caller else self._services.accounts.enter(ask.caller)
        )
        match ask.subject:
            case "key":
                return {}
            case "admit":
                if self._services.accounts is not None:
                    self._services.accounts.admit(ask.caller)
                return {}
            case "live":
                return {}
            case "ready":
                return {"ready": self._is_ready()}
            case "server":
                server = metadata.server_metadata()
                server.extensions = [name for name in server.extensions if name not in _NOT_HERE]
                return msgspec.structs.asdict(server)
            case "model":
                target = ModelTarget(ask.model, ask.version)
                body: dict[str, Any] = msgspec.to_builtins(self._metadata(target, account))
                return body
            case "model_ready":
                return {"ready": self._is_model_ready(ModelTarget(ask.model, ask.version), account)}
            case _:
                return {"models": msgspec.to_builtins(metadata.index(self._worker.standings()))}

    def _is_ready(self) -> bool:
        try:
            self._check_ready()
        except CorosrvError:
            return False
        return True

    def _metadata(self, target: ModelTarget, account: CallAccount | None) -> metadata.ModelMetadata:
        try:
            return metadata.model_metadata(self._worker.find(target), self._worker.standings())
        except CorosrvError as error:
            return msgspec.json.decode(self._told_by_peer(target, "", error, account), type=metadata.ModelMetadata)

    def _told_by_peer(
        self, target: ModelTarget, path: str, own_error: CorosrvError, account: CallAccount | None
    ) -> bytes:
        """Returns what a peer answers for a model. Waits. Raises its error, and this server's own if none is asked."""
        terms = Terms(deadline=time.monotonic() + _PATIENCE, account=account)
        job = InferJob(target, ForwardRequest(method="GET", path=path), terms=terms)
        if (answers := self._services.delegate(job, own_error)) is None:
            raise own_error
        with contextlib.closing(answers):
            for item in answers:
                if isinstance(item, AnswerBody):
                    return item.data
                if isinstance(item, InferEnd) and item.error is not None:
                    raise item.error
        raise own_error

    def _is_model_ready(self, target: ModelTarget, account: CallAccount | None) -> bool:
        try:
            card = self._worker.find(target)
        except (NotFound, Unavailable) as error:
            try:
                self._told_by_peer(target, "/ready", error, account)
            except CorosrvError:
                return False
            return True
        standing = metadata.standing_of(card, self._worker.standings())
        return standing is not None and standing.state == metadata.READY


def check_grpcio() -> None:
    """Raises SettingsError where grpcio is not installed."""
    for package in ("grpc", "google.protobuf"):
        try:
            is_there = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise SettingsError(
                "gRPC needs the extra `grpc`: pip install 'corosrv[grpc]', or serve without --grpc-port"
            )


class GrpcFront(SupervisedProcess[GrpcLink]):
    """Serves KServe's v2 protocol over gRPC. Belongs to the thread of one hub."""

    def __init__(
        self,
        config: GrpcConfig,
        worker: InferWorker,
        check_ready: Callable[[], None],
        services: CallServices,
    ) -> None:
        """Takes the worker that clients ask about, and what the server does for their calls.

        `check_ready` raises the Unavailable that calls would meet now. Raises SettingsError where grpcio is not
        installed.
        """
        check_grpcio()
        self._config = config
        self.stats = GrpcStats()
        self.has_served = False  # a process was READY once: the front as such works, and deaths are its own affair
        inform = ServerInfo(worker, check_ready, services)
        super().__init__(lambda: GrpcLink(self._config, services, inform, self.stats))

    @property
    def port(self) -> int:
        """The port, once it was READY; the same for all processes."""
        return self.process.port

    @property
    def n_running(self) -> int:
        """The number of calls that run for its clients."""
        return self.process.n_running

    def _on_change(self) -> None:
        if self.state is WorkerState.READY:
            self.has_served = True
            self._config = replace(self._config, port=self.port)
            log.info("gRPC listens on %s, port %d", self._config.address, self.port)
        super()._on_change()

    def _is_worth_another(self) -> bool:
        return super()._is_worth_another() or not self.process.refused_to_start
