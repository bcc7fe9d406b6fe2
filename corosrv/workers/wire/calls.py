"""Defines the messages between server and worker about calls of handlers: msgpack maps with a `type`.

A worker inherits a control channel. It imports the application and says which pools it has; it is told which of them
it works for, starts that pool's handlers and says so, which is its registration. Then each slot gets a lane, on which
one call (or one batch of calls) runs at a time. Slots are numbered through the pool's groups in their order: a group
of concurrency 3 has three slots in a row.

A tensor of MIN_ATTACHED bytes or more travels beside its message, in a sealed memory file: corosrv.workers.wire.tensors
puts it there and takes it out.
"""

from __future__ import annotations

import msgspec

from corosrv.contracts.jobs.infer import HandlerCard, ObjRef
from corosrv.contracts.jobs.setup import LogLine
from corosrv.formats.tensors import Parameter
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Lanes, Log, SlotFailed

PROTOCOL = 1  # of these messages; a worker that speaks another one is refused


class _CallMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class WireTensor(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """Holds a tensor. `n_attached`: bytes of its content in a memory file beside the message; -1: in `raw`."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes = b""
    n_attached: int = -1
    parameters: dict[str, Parameter] = {}


class WireRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds the payload of one call; see corosrv.contracts.jobs.infer.InferRequest."""

    inputs: list[WireTensor] = []
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[str] | None = None


class ObjectInput(msgspec.Struct, frozen=True, array_like=True):
    """Names an input whose content is an object's. `position`: its place among all inputs of the request."""

    position: int
    object_id: str
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Parameter] = {}


class PoolCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes one pool of the application's workers.

    `min_workers`: None leaves it to the operator, as for the pool of all plain functions, whose name is `default`.
    """

    name: str
    handlers: list[HandlerCard]
    min_workers: int | None = None
    max_workers: int | None = None
    gpus: float = 0.0
    memory_mb: float = 0.0
    cold_start_ms: float | None = None
    priority: int = 5


# Control channel, to the worker.


class InitApp(_CallMessage, frozen=True, tag="init_app"):
    """Comes first and names the application to import. `is_factory`: the reference names a function that makes it."""

    app_ref: str
    app_dir: str = ""
    is_factory: bool = False
    worker_id: str = ""  # empty: StartPool says it
    protocol: int = PROTOCOL


class StartPool(_CallMessage, frozen=True, tag="start_pool"):
    """Tells a worker that has said Loaded which pool it works for, and what it is called there."""

    pool: str
    worker_id: str = ""


class CancelCall(_CallMessage, frozen=True, tag="cancel_call"):
    """Cancels the call of this id, or one item of its batch; does nothing once the slot runs another."""

    slot: int
    id: int
    item: int = -1  # all of them
    is_deadline: bool = False  # its time is over, which the handler is told in place of a cancel


class StopWorker(_CallMessage, frozen=True, tag="stop_worker"):
    """Runs `on_stop` and ends the worker. Sent when nothing runs any more, or when its time is over."""

    grace_ms: float = 10_000.0  # for on_stop


# Control channel, to the server.


class Loaded(_CallMessage, frozen=True, tag="loaded"):
    """Reports that the application was imported. Nothing of it was started yet."""

    pools: list[PoolCard]
    protocol: int = PROTOCOL


class Registered(_CallMessage, frozen=True, tag="registered"):
    """Reports that the pool's handlers have started: the worker takes calls as soon as it has its lanes."""

    handlers: list[HandlerCard]


class Heartbeat(_CallMessage, frozen=True, tag="heartbeat"):
    """Comes every 1.6 seconds while the worker's control thread turns. A hint for tables, and never more."""

    in_flight: int
    rss: int  # bytes


class StartFailed(_CallMessage, frozen=True, tag="start_failed"):
    """Reports that the application could not be imported, or the pool not be started; the worker ends."""

    error: str


class WorkerStopped(_CallMessage, frozen=True, tag="worker_stopped"):
    """Reports, as the last message, that `on_stop` has run."""


# Lane, to the worker.


class RunCall(_CallMessage, frozen=True, tag="run_call"):
    """Runs a handler. `requests` has one member, or those of a batch, whose answers name them by their position.

    `handler`: its position in Registered.handlers. `budget_us`: microseconds that are left until the deadline of each
    request, None without one. `trace_headers`: of each request, where requests are traced.
    """

    id: int
    handler: int
    requests: list[WireRequest]
    budget_us: list[int | None]
    request_ids: list[str]
    attempt: int = 1
    stream: bool = False
    trace_headers: list[dict[str, str]] = []


# Lane, to the server. Each item of a call gets any number of outputs, and then exactly one end or failure. When the
# last item has one, the slot is idle again.


class CallOutputs(_CallMessage, frozen=True, tag="outputs"):
    """Brings one answer of one item."""

    id: int
    outputs: list[WireTensor]
    parameters: dict[str, Parameter] = {}
    is_final: bool = False
    item: int = 0


class CallEnd(_CallMessage, frozen=True, tag="end"):
    """Reports that one item has ended well."""

    id: int
    item: int = 0


class CallFailure(_CallMessage, frozen=True, tag="failure"):
    """Reports that one item has failed.

    `kind`: invalid_input, not_found, conflict, unavailable, cancelled, deadline or failed. The message of all but the
    last is for the client; that of `failed` has a traceback and is for the log.
    """

    id: int
    kind: str
    message: str
    item: int = 0


# Asks: calls in the other direction, on the lane of the call that makes them, or on the one lane of the gRPC front.
# The `number` is the asking side's own. Answers come as AskOutputs, and one AskEnd, which is the last.


class Ask(_CallMessage, frozen=True, tag="ask"):
    """Asks the dispatcher to run a call. Either `model` or `capability` is there."""

    number: int
    request: WireRequest
    model: str = ""
    version: str = ""
    capability: dict[str, object] | None = None
    prefer: dict[str, float] = {}
    is_fuzzy: bool = False
    stream: bool = False
    budget_us: int | None = None
    priority: int = 0  # 0: that of the call which asks
    request_id: str = ""
    session: str = ""
    caller: str = ""  # believed from the gRPC front alone
    owner: str = ""  # of the gRPC front alone, as the tier is
    tier: int | None = None  # None: as the caller's key has it
    idempotency_key: str = ""  # of the gRPC front alone
    object_inputs: list[ObjectInput] = []  # beside those of the request
    headers: dict[str, str] = {}  # of the gRPC front alone: its client's, which go on to whoever answers


class AskCancel(_CallMessage, frozen=True, tag="ask_cancel"):
    """Cancels an ask; its AskEnd still comes."""

    number: int


class AskTaken(_CallMessage, frozen=True, tag="ask_taken"):
    """Says that so many outputs were passed on; at most ASK_WINDOW may be on their way."""

    number: int
    count: int


class AskOutputs(_CallMessage, frozen=True, tag="ask_outputs"):
    """Brings one answer of an ask. `model` and `version` name the handler that answers."""

    number: int
    outputs: list[WireTensor]
    parameters: dict[str, Parameter] = {}
    is_final: bool = False
    model: str = ""
    version: str = ""


class AskEnd(_CallMessage, frozen=True, tag="ask_end"):
    """Ends an ask."""

    number: int
    model: str = ""
    version: str = ""
    fault: Fault | None = None
    is_replayed: bool = False  # this is the answer of an earlier call with the same idempotency key


ASK_WINDOW = 16


# Objects, on the lane of the call that uses them. The `number` is the asking side's own; each message gets one
# ObjectAnswer. A content of MIN_ATTACHED bytes or more travels in a sealed memory file beside the message.


class ObjectCreate(_CallMessage, frozen=True, tag="object_create"):
    """Stores a value. `n_attached`: the bytes of its content in the memory file; -1: it is in `data`."""

    number: int
    sha256: str
    content_type: str
    data: bytes = b""
    n_attached: int = -1
    key: str = ""
    ttl_s: float = 3600.0


class ObjectLookup(_CallMessage, frozen=True, tag="object_lookup"):
    """Asks which object a key finds."""

    number: int
    key: str


class ObjectGet(_CallMessage, frozen=True, tag="object_get"):
    """Asks for the content of an object."""

    number: int
    id: str


class ObjectDelete(_CallMessage, frozen=True, tag="object_delete"):
    number: int
    id: str


class ObjectAnswer(_CallMessage, frozen=True, tag="object_answer"):
    """Answers an ObjectAsk. `ref`: the object; None if the key finds none."""

    number: int
    ref: ObjRef | None = None
    data: bytes = b""
    n_attached: int = -1
    fault: Fault | None = None


ObjectAsk = ObjectCreate | ObjectLookup | ObjectGet | ObjectDelete

ControlToAppWorker = InitApp | StartPool | Lanes | CancelCall | StopWorker
ControlFromAppWorker = (
    Loaded | Registered | Heartbeat | Log | StartFailed | SlotFailed | Fatal | DroppedLogs | WorkerStopped
)
LaneToAppWorker = RunCall | AskOutputs | AskEnd | ObjectAnswer
LaneFromAppWorker = (
    LogLine
    | CallOutputs
    | CallEnd
    | CallFailure
    | Ask
    | AskCancel
    | AskTaken
    | ObjectCreate
    | ObjectLookup
    | ObjectGet
    | ObjectDelete
)
