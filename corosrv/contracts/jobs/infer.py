"""Inference calls: what KServe's clients and handlers ask of a model or a capability, and what comes back.

Large values travel as references to objects (`ObjRef`) and are not copied. A request for an upstream travels as it was
sent (`ForwardRequest`), and its answer comes back as it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.reader import Reader
from corosrv.contracts.jobs.terms import Terms
from corosrv.formats.tensors import Parameter, Tensor, TensorSpec


class ObjRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Refers to one immutable object. It tells no path: only the store that made it can find the content."""

    id: str
    size: int  # bytes
    sha256: str  # of the content, in hexadecimal
    content_type: str
    expires_ms: int  # Unix time
    key: str = ""
    replica: str = ""  # whose store has it; empty: this one's


Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model by its name; without a version, its unversioned entry or its default version."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class CapabilityTarget:
    """A query for handlers by their capabilities; corosrv.workers.dispatch.capability says how one is written."""

    query: Mapping[str, object]
    prefer: Mapping[str, float] = field(default_factory=dict)  # weights of predicates, as `tier=small`, by attribute
    is_fuzzy: bool = False


Target = ModelTarget | CapabilityTarget


@dataclass(frozen=True, slots=True)
class InferRequest:
    """The payload of a call. `outputs`: the names asked for; None: all of them."""

    inputs: tuple[Tensor, ...] = ()
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.inputs)


@dataclass(frozen=True, slots=True)
class InferJob:
    """One call. `stream`: its answers are wanted as they come; otherwise exactly one is wanted.

    `card`: what `InferWorker.find` returned for the target, if the inputs were checked against it: no other handler
    gets the call then. `only_host`: the id of the one host that may run it; empty: any that serves the target may.
    """

    target: Target
    request: InferRequest
    stream: bool = False
    terms: Terms = field(default_factory=Terms)
    card: HandlerCard | None = None
    only_host: str = ""


@dataclass(frozen=True, slots=True)
class InferOutputs:
    """One answer of a call: a unary call has one, a streamed one any number."""

    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    is_final: bool = False  # the handler said that no answer follows


@dataclass(frozen=True, slots=True)
class InferEnd:
    """The end of a call, and the last item of its reader. `error`: why it failed; None if it went well."""

    error: CorosrvError | None = None


InferItem = InferOutputs | InferEnd


class BatchLimits(msgspec.Struct, frozen=True):
    """Says how calls of one handler are gathered into batches."""

    max_size: int
    max_delay_ms: float = 0.0


class HandlerCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes one thing that a worker offers: a model's version, or a capability.

    Handlers of one `group` share their slots: `concurrency` of them run at once in one worker process.
    """

    name: str
    version: str = ""  # empty: unversioned
    capability: dict[str, Scalar] | None = None  # None: a model, which is asked for by its name
    is_default: bool = False  # the version that calls without one get
    platform: str = "corosrv-python"
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    is_stream: bool = False  # it may give several answers
    unary: str = "refuse"  # what a streaming handler does with a unary call: join, last or refuse
    group: int = 0
    concurrency: int = 1
    max_queue: int = 64
    slo_ms: float = 60_000.0
    timeout_ms: float | None = None
    is_idempotent: bool = False
    batch: BatchLimits | None = None
    priority: int = 5  # among capabilities that match alike; 1 is first
    admission: str = ""  # predict: calls that can hardly end in time are refused on arrival, and not started

    @property
    def key(self) -> str:
        """The key of this handler's queue."""
        if self.capability is None:
            return f"model:{self.name}:{self.version}"
        return f"cap:{msgspec.json.encode(self.capability, order='sorted').decode()}"


class InferReader(Reader[InferItem], Protocol):
    """The receiving end of one call. Its last item is an InferEnd, which comes once, whatever happens."""

    @property
    def card(self) -> HandlerCard:
        """The handler that was matched, and answers."""

    @property
    def is_replayed(self) -> bool:
        """True if these are the answers of an earlier call with the same idempotency key."""
        return False

    def on_news(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, when there is something to take; it must not wait.

        Returns False, and never calls it, if there is now, or if this reader cannot tell: `take` waits then.
        """
        return False


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """One row of the repository's index. `state`: READY, LOADING or UNAVAILABLE."""

    card: HandlerCard
    state: str
    reason: str = ""


class InferWorker(Protocol):
    """Anything that runs inference calls. Nothing here waits but the readers."""

    def standings(self) -> tuple[ModelStanding, ...]:
        """Returns every known handler and whether it can be called now; models and capabilities alike."""

    def find(self, target: Target) -> HandlerCard:
        """Returns the handler that a call would get. Raises NotFound, Conflict, and Refused for a wrong query."""

    def submit(self, job: InferJob) -> InferReader:
        """Queues or runs a call. Raises what `find` raises, and Unavailable or QueueFull.

        Inputs are checked against the handler's declarations before; see corosrv.dialects.kserve.
        """


Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ForwardRequest(InferRequest):
    """Holds a request that goes on to an upstream as it was sent; it has no tensors.

    `path` has the query in it. `headers` are those that may go on: no hop-by-hop fields, no keys of this server.
    `prompt`: the beginning of what the model will read, by which upstreams that know it already are found.
    """

    method: str = "POST"
    path: str = "/"
    headers: Headers = ()
    body: bytes = b""
    prompt: bytes = b""

    @property
    def n_bytes(self) -> int:
        return len(self.body)


@dataclass(frozen=True, slots=True)
class AnswerHead(InferOutputs):
    """Holds the status and headers of an upstream's answer: the first item of a forwarded call that reaches one."""

    outputs: tuple[Tensor, ...] = ()
    status: int = 200
    headers: Headers = ()
    upstream: str = ""  # the id of the one that answers


@dataclass(frozen=True, slots=True)
class AnswerBody(InferOutputs):
    """Holds bytes of the body of an upstream's answer, as they came."""

    outputs: tuple[Tensor, ...] = ()
    data: bytes = b""
