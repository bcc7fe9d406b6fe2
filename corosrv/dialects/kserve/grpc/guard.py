"""Guards the methods of all services: checks the key of every call, counts it, and converts errors to statuses.

`CallMetadata` holds what a call says beside its message: who calls, under which id, for how long, and which capability
it asks for. The counts go to the server, which shows them to Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc

from corosrv.base.errors import CorosrvError, ErrorKind, Unauthorized
from corosrv.contracts.jobs.infer import CapabilityTarget
from corosrv.contracts.jobs.terms import Flow
from corosrv.dialects.kserve.grpc.messages import GrpcCounts
from corosrv.dialects.kserve.parameters import parse_capability
from corosrv.web.inference_gateway import FAIRNESS_ID, OBJECTIVE, InferenceGateway
from corosrv.web.keys import KeyRing, digest
from corosrv.workers.wire.calls import AskEnd
from corosrv.workers.wire.faults import Fault

log = logging.getLogger("corosrv.grpc")

_CODES = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.CONTEXT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.NOT_OFFERED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorKind.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.CLIENT_GONE: grpc.StatusCode.CANCELLED,
    ErrorKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.DEADLINE_PASSED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.WORKER_LOST: grpc.StatusCode.ABORTED,
    ErrorKind.FAILED: grpc.StatusCode.INTERNAL,
}

PUSHBACK = "grpc-retry-pushback-ms"  # trailing metadata: when another try makes sense
REPLAYED = (("idempotency-replayed", "true"),)  # trailing metadata: an earlier call's answer, with the same key
_LONGEST_TEXT = 4096  # characters; it travels in a header, which peers bound at 8 KiB


@dataclass(frozen=True, slots=True)
class CallStatus:
    """Tells a client how its call failed."""

    code: grpc.StatusCode
    text: str
    retry_after: int | None = None  # seconds
    is_replayed: bool = False

    @property
    def trailing(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata."""
        pushback = () if self.retry_after is None else ((PUSHBACK, str(1000 * self.retry_after)),)
        return (*pushback, *REPLAYED) if self.is_replayed else pushback


class StatusError(Exception):
    """Ends the handling of a call with a status; caught in corosrv.dialects.kserve.grpc alone."""

    def __init__(self, status: CallStatus) -> None:
        super().__init__(status.text)
        self.status = status


def of_fault(fault: Fault, is_replayed: bool = False) -> CallStatus:
    """Returns the status of a call that the server ended with an error."""
    return CallStatus(_CODES[fault.error_kind], fault.message[:_LONGEST_TEXT], fault.retry_after, is_replayed)


def of_error(error: CorosrvError) -> CallStatus:
    return of_fault(Fault.from_error(error))


TELL_AFTER = 0.05  # seconds in which counts gather before the server is told


class CallCounts:
    """Counts calls by method and code, and open streams. Belongs to one event loop."""

    def __init__(self, tell: Callable[[GrpcCounts], None]) -> None:
        """`tell`: sends what has changed; it must not wait."""
        self._tell = tell
        self._ended: Counter[tuple[str, str]] = Counter()
        self._n_streams = 0
        self._is_due = False

    def count(self, method: str, code: grpc.StatusCode) -> None:
        """Counts a call that has ended."""
        self._ended[method, code.name] += 1
        self._plan()

    @contextlib.contextmanager
    def open_stream(self) -> Iterator[None]:
        """Counts a stream as open while the `with` block runs."""
        self._n_streams += 1
        self._plan()
        try:
            yield
        finally:
            self._n_streams -= 1
            self._plan()

    def _plan(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(TELL_AFTER, self.flush)

    def flush(self) -> None:
        """Tells the server now of what has changed since it was told last."""
        self._is_due = False
        ended, self._ended = self._ended, Counter()
        self._tell(GrpcCounts([(method, code, n) for (method, code), n in ended.items()], self._n_streams))


_NO_CAPABILITY = CapabilityTarget({})
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Pairs = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class CallMetadata:
    """Holds what a call says beside its message."""

    texts: Mapping[str, str]  # by name
    caller: str
    request_id: str
    capability: CapabilityTarget  # its query is empty if none is asked for
    flow: Flow | None = None  # that an inference gateway says it belongs to

    def header(self, name: str) -> str | None:
        """Looks metadata up as REST's headers are named, in any case."""
        return self.texts.get(name.lower())


def check_key(pairs: Pairs, keys: KeyRing) -> str:
    """Returns a name for the caller, made from its key; "" where none is needed. Raises Unauthorized."""
    if not keys.are_needed:
        return ""
    caller = keys.caller(_find_key(pairs))
    if caller is None:
        raise Unauthorized("this API key is not known here")
    return caller


def read(context: Any, caller: str, gateway: InferenceGateway) -> CallMetadata:
    """Reads the metadata of a call whose key was checked. Raises Refused."""
    pairs: Pairs = context.invocation_metadata()
    texts = {name: value for name, value in pairs if isinstance(value, str)}
    names = texts.get(FAIRNESS_ID.lower(), ""), texts.get(OBJECTIVE.lower(), "")
    address = peer_address(context.peer()) if any(names) else ""
    if any(names) and not gateway.is_trusted(address):  # so that no peer believes them
        texts = {name: value for name, value in texts.items() if name not in (FAIRNESS_ID.lower(), OBJECTIVE.lower())}
    request_id = texts.get("x-request-id", "")
    fields = [(name, value) for name, value in pairs if isinstance(value, str) and name.startswith("x-")]
    return CallMetadata(
        texts=texts,
        caller=caller,
        request_id=request_id if _SANE_ID.fullmatch(request_id) else f"req_{secrets.token_hex(16)}",
        capability=parse_capability(fields) if fields else _NO_CAPABILITY,
        flow=gateway.flow(address, *names),
    )


def peer_address(peer: str) -> str:
    """Returns the IP address in gRPC's name for a peer, as ipv4:10.0.0.1:50000; empty for a Unix socket."""
    address, _, _ = unquote(peer).partition(":")[2].rpartition(":")
    return address.strip("[]")


def _find_key(pairs: Pairs) -> bytes:
    """Returns the key in a call's metadata. Raises Unauthorized where there is none."""
    key = next(filter(None, (_key(name, value) for name, value in pairs)), None)
    if key is None:
        raise Unauthorized("no API key: send it as the metadata 'authorization: Bearer KEY'")
    return key


def _key(name: str, value: str | bytes) -> bytes | None:
    if isinstance(value, bytes):
        return None
    if name == "authorization":
        scheme, _, key = value.partition(" ")
        return key.encode() if scheme.lower() == "bearer" else None
    return value.encode() if name == "x-api-key" else None


Answer = Callable[[Any, str], Awaitable[Any]]  # of the context and the caller
AskServer = Callable[..., Awaitable[dict[str, Any] | AskEnd]]  # Asker.info

_DEADLINE_SLACK = 0.25  # seconds by which a client's clock for its call may be ahead
_FAILED = CallStatus(grpc.StatusCode.INTERNAL, "the call failed; the server's log says why")


class CallGuard:
    """Stands before the methods of all services. Nothing of a request is read before its key was checked."""

    def __init__(self, keys: KeyRing, counts: CallCounts, ask: AskServer | None = None) -> None:
        """`ask`: asks the server, which has a file of keys, whether one is let in; None where `keys` are all."""
        self._keys = keys
        self._counts = counts
        self._ask = ask

    async def enter(self, context: Any, *, counts: bool = False) -> str:
        """Returns a name for a call's caller; "" where no key is needed. `counts`: as count() does, in the same ask.

        Raises Unauthorized and StatusError.
        """
        pairs = context.invocation_metadata()
        if self._ask is None:
            return check_key(pairs, self._keys)
        caller = digest(_find_key(pairs)).hex()
        await self._tell("admit" if counts else "key", caller)
        return caller

    async def count(self, caller: str) -> None:
        """Counts a request for the key of a caller who was let in. Raises StatusError where it is over a limit."""
        if self._ask is not None:
            await self._tell("admit", caller)

    async def _tell(self, subject: str, caller: str) -> None:
        assert self._ask is not None
        answer = await self._ask(subject, caller=caller)
        if isinstance(answer, AskEnd):
            assert answer.fault is not None, "only what fails has an end"
            raise StatusError(of_fault(answer.fault))

    def unary(self, name: str, answer: Answer, *, is_open: bool = False, counts: bool = False) -> Any:
        """Makes the handler of a method with one request, which `answer` reads from the context.

        `counts`: it asks for work, and counts for the limits of its key. grpcio reads the request of a unary method
        before it asks anybody, and that of a stream when it is told to.
        """
        return grpc.stream_unary_rpc_method_handler(self._guarded(name, answer, is_open, counts))

    def stream(self, name: str, answer: Answer, *, is_open: bool = False) -> Any:
        """Makes the handler of a method with many answers, which `answer` writes to the context."""
        return grpc.stream_stream_rpc_method_handler(self._guarded(name, answer, is_open))

    def _guarded(
        self, name: str, answer: Answer, is_open: bool, counts: bool = False
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Checks the key of a call, unless the method is open to all. Counts the call by its method's name."""

        async def handle(_requests: Any, context: Any) -> Any:
            try:
                caller = "" if is_open else await self.enter(context, counts=counts)
                result = await answer(context, caller)
                self._counts.count(name, grpc.StatusCode.OK)
                return result
            except asyncio.CancelledError:
                self._counts.count(name, _code_of_cancel(context))
                raise
            except StatusError as error:
                status = error.status
            except CorosrvError as error:
                status = of_error(error)
            except Exception:
                log.exception("a call could not be answered")
                status = _FAILED
            self._counts.count(name, status.code)
            await context.abort(status.code, status.text, status.trailing)

        return handle


def _code_of_cancel(context: Any) -> grpc.StatusCode:
    """Returns the code of a call that grpcio has cancelled: for its client, or because its time is over.

    The client counts from when it sent the call, and so gives up a little before the time is over here.
    """
    remaining = context.time_remaining()
    is_over = remaining is not None and remaining <= _DEADLINE_SLACK
    return grpc.StatusCode.DEADLINE_EXCEEDED if is_over else grpc.StatusCode.CANCELLED
