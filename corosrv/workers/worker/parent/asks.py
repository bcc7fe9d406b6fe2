"""Runs the calls that other processes make through the dispatcher: handlers, and the gRPC front."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, Protocol

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub

from corosrv.base.errors import (
    ChannelClosed,
    CorosrvError,
    FrameTooLarge,
    HandlerFailed,
    NotOffered,
    ProtocolError,
    QueueFull,
)
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs.infer import (
    CapabilityTarget,
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferRequest,
    InferWorker,
    ModelTarget,
    Target,
)
from corosrv.contracts.jobs.terms import Account, Terms, TracePart
from corosrv.formats.tensors import Parameter, Tensor, check_inputs
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.objects import ObjectStore, content_of
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import ASK_WINDOW, Ask, AskCancel, AskEnd, AskOutputs, AskTaken, ObjectInput
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking, make_tensors, map_attached

log = logging.getLogger("corosrv.worker")

MAX_ASKS = 256  # that one call of a handler may have running at once
LONG_COPY = 4 << 20  # bytes whose copying would hold the hub for a millisecond or more

Submit = Callable[[InferJob], InferReader]


class CallAccount(Account, Protocol):
    """The account of an API key, with which calls are made."""

    def admit(self, method: str) -> None:
        """Counts a request by its method. May wait. Raises LimitReached."""

    def terms(self, terms: Terms) -> Terms:
        """Returns the terms with what the key adds."""


class CallAccounts(Protocol):
    """The accounts of the API keys that are let in."""

    def enter(self, caller: str) -> CallAccount | None:
        """Returns the account of a caller, who may use from now on in this greenlet what it may use; None where no key
        is needed. May wait. Raises Unauthorized."""


class CallAnswers(Protocol):
    """The answers to one call, the last of which is an InferEnd; whoever gives them."""

    @property
    def card(self) -> HandlerCard:
        """The handler that answers; known at the latest with the first answer."""

    @property
    def is_replayed(self) -> bool:
        """True if these are the answers of an earlier call with the same idempotency key."""

    def __iter__(self) -> Iterator[InferItem]: ...

    def cancel(self) -> None: ...

    def close(self) -> None:
        """Cancels what has not ended. Twice is harmless."""


# Of a call, and the error that it ended in here before it had an answer; None where that error stands. Never waits.
Delegate = Callable[[InferJob, CorosrvError], CallAnswers | None]
BeginCall = Callable[[Mapping[str, str], bool], TracePart]  # of headers, and whether the call is a stream
SendAnswer = Callable[[AskOutputs | AskEnd, Sequence[int]], None]  # raises what GeventChannel.send raises


def submit_to(worker: InferWorker) -> Submit:
    """Returns a function that submits a job to the worker, after checking its inputs against the declarations."""

    def submit(job: InferJob) -> InferReader:
        card = worker.find(job.target)
        check_inputs(card.inputs, job.request.inputs)
        return worker.submit(replace(job, card=card))

    return submit


def no_delegate(job: InferJob, error: CorosrvError) -> CallAnswers | None:
    """Leaves a call with its error, where the server has no peers."""
    return None


def _refuse_job(job: InferJob) -> InferReader:
    raise NotOffered("this server runs no calls for handlers")


@dataclass(frozen=True)
class CallServices:
    """Holds what a server does for calls that handlers or gRPC's clients make.

    `submit`: runs a call; see submit_to. `objects`: the store of objects; None if there is none. `delegate`: gives a
    call that could not run here to a peer. `begin_call`: begins the trace of each call, where clients make them and are
    traced. `accounts`: of clients, where keys may do different things; whoever asks is trusted to name the client.
    """

    submit: Submit = _refuse_job
    objects: ObjectStore | None = None
    delegate: Delegate = no_delegate
    begin_call: BeginCall | None = None
    accounts: CallAccounts | None = None


class Asks:
    """Runs the asks of one lane and sends their answers. Belongs to the thread of one hub.

    Each ask gets its outputs and then exactly one AskEnd, unless the lane is closed before.
    """

    def __init__(
        self,
        services: CallServices,
        send: SendAnswer,
        terms: Terms | None = None,
        *,
        limit: int = MAX_ASKS,
        is_trusted: bool = False,
    ) -> None:
        """Takes what the server does for the asks, and what sends a message over the lane.

        `terms`: those of the call that asks; its asks end at its deadline, belong to its caller, and are as urgent as
        it is unless they say otherwise. `limit`: how many asks may run at once. `is_trusted`: the asking side is ours:
        it has checked the tensors, and says who calls.
        """
        self._services = services
        self._send = send
        self._terms = terms or Terms()
        self._limit = limit
        self._is_trusted = is_trusted
        self._running: dict[int, _FollowedAsk] = {}

    @property
    def n_running(self) -> int:
        return len(self._running)

    def on_message(self, message: Ask | AskCancel | AskTaken, fds: Sequence[int] = ()) -> None:
        """Handles a message of the asking side; closes the descriptors that came with it. Never waits.

        Raises ProtocolError for an ask whose number is in use, or whose attached tensors are not as announced.
        """
        if isinstance(message, Ask):
            self._begin(message, fds)
            return
        descriptors.close_all(fds)
        running = self._running.get(message.number)
        if running is None:
            return  # it has ended meanwhile
        if isinstance(message, AskCancel):
            running.cancel()
        else:
            running.take(message.count)

    def close(self) -> None:
        """Cancels all asks, as the lane or the asking call has ended. Nothing is sent any more. Never waits."""
        running, self._running = self._running, {}
        for ask in running.values():
            ask.kill()

    def _begin(self, ask: Ask, fds: Sequence[int]) -> None:
        if ask.number in self._running:
            descriptors.close_all(fds)
            raise ProtocolError(f"the ask {ask.number} is running already")
        content = map_attached([ask.request.inputs], fds)
        if len(self._running) >= self._limit:
            error = QueueFull(f"{self._limit} calls are made at once already; wait for some of them")
            self._tell(end_of(ask.number, None, error))
            return
        begin_call = self._services.begin_call
        trace = None if begin_call is None else begin_call(ask.headers, ask.stream)
        make_job = functools.partial(_job, ask, content, self._terms_of(ask, trace), self._is_trusted, self._services)
        running = self._running[ask.number] = _FollowedAsk(
            ask.number, make_job, self._services, self._send, self._forget
        )
        running.trace = trace
        is_checked = self._is_trusted and self._services.accounts is None
        running.start(is_short=is_checked and not ask.object_inputs and not ask.stream)

    def _terms_of(self, ask: Ask, trace: TracePart | None) -> Terms:
        deadline = self._terms.deadline
        if ask.budget_us is not None:
            own_deadline = time.monotonic() + ask.budget_us / 1e6
            deadline = own_deadline if deadline is None else min(deadline, own_deadline)
        changes: dict[str, Any] = {
            "deadline": deadline,
            "priority": ask.priority or self._terms.priority,
            "request_id": ask.request_id or self._terms.request_id,
            "session": ask.session or self._terms.session,
            "trace": self._terms.trace if trace is None else trace,
        }
        if not self._is_trusted:
            return replace(self._terms, **changes)
        return replace(
            self._terms,
            caller=ask.caller,
            owner=ask.owner,
            tier=ask.tier or 0,
            idempotency_key=ask.idempotency_key,
            headers=tuple(ask.headers.items()),
            **changes,
        )

    def _forget(self, ask: _FollowedAsk, end: AskEnd) -> None:
        if self._running.get(ask.number) is ask:
            del self._running[ask.number]
            if ask.trace is not None:
                ask.trace.end(error="" if end.fault is None else end.fault.kind)
            self._tell(end)

    def _tell(self, end: AskEnd) -> None:
        with contextlib.suppress(ChannelClosed):  # whoever owns the lane hears of it, and closes
            self._send(end, ())


class _FollowedAsk:
    """Follows one ask from its call's submission to its end: a greenlet that passes the reader's items on.

    A short one has none while it waits: most calls have one answer, which the hub itself can send.
    """

    def __init__(
        self,
        number: int,
        make_job: Callable[[], InferJob],
        services: CallServices,
        send: SendAnswer,
        on_end: Callable[[_FollowedAsk, AskEnd], None],
    ) -> None:
        self.number = number
        self.trace: TracePart | None = None  # of its own
        self._make_job = make_job
        self._services = services
        self._send = send
        self._on_end = on_end
        self._reader: CallAnswers | None = None  # those of a peer, once it has the call
        self._has_begun = False  # an answer has come
        self._greenlet: gevent.Greenlet | None = None
        self._is_killed = False
        self._is_cancelled = False
        self._n_untaken = 0  # outputs that the asking side has not passed on yet
        self._has_room: Event | None = None  # while it waits for that

    def start(self, *, is_short: bool) -> None:
        """Starts it. `is_short`: to make its job waits for nothing, and one answer is wanted."""
        if not is_short:
            self._spawn(lambda: self._answer(self._make_job()))
            return
        try:
            job = self._make_job()
            answers = self._submit(job)
        except Exception as error:
            self._spawn(functools.partial(_raise, error))
            return
        if not isinstance(answers, CorosrvError):
            self._reader = answers
        if not isinstance(answers, HandlerReader) or not answers.on_news(
            lambda: get_hub().loop.run_callback(self._take, job, answers)
        ):
            self._spawn(lambda: self._go_on(job, answers))

    def _take(self, job: InferJob, reader: HandlerReader) -> None:
        """Sends the answer of a short ask in the hub, unless that could wait."""
        if self._is_killed:
            return
        items = reader.take_nowait()
        match items:
            case [InferOutputs(outputs), InferEnd(None)] if sum(tensor.n_bytes for tensor in outputs) < LONG_COPY:
                self._run(lambda: self._go_on(job, reader, items))
            case _:
                self._spawn(lambda: self._go_on(job, reader, items))

    def _spawn(self, answer: Callable[[], CorosrvError | None]) -> None:
        self._greenlet = gevent.spawn(self._run, answer)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._reader is not None:
            self._reader.cancel()
        self._wake()

    def kill(self) -> None:
        """Ends it without an AskEnd; its reader is closed, which cancels."""
        self._is_killed = True
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
        if self._reader is not None:  # which a greenlet that has not begun would leave open
            self._reader.close()

    def take(self, count: int) -> None:
        self._n_untaken -= count
        self._wake()

    def _wake(self) -> None:
        if self._has_room is not None:
            self._has_room.set()

    def _run(self, answer: Callable[[], CorosrvError | None]) -> None:
        """Ends the ask as `answer` returns. Waits as it does."""
        error: CorosrvError | None
        try:
            error = answer()
        except FrameTooLarge:
            error = HandlerFailed("the parameters of the answer are too large")
        except CorosrvError as failure:
            error = failure
        except Exception:
            log.exception("an ask could not be answered")
            error = HandlerFailed("the call failed; the server's log says why")
        reader = self._reader
        is_replayed = reader is not None and reader.is_replayed
        self._on_end(self, end_of(self.number, None if reader is None else reader.card, error, is_replayed))

    def _answer(self, job: InferJob) -> CorosrvError | None:
        """Sends what this server answers, or a peer where the call had no answer here; returns how it ended. Waits."""
        return self._go_on(job, self._submit(job))

    def _submit(self, job: InferJob) -> CallAnswers | CorosrvError:
        """Submits the job; returns its answers, or why there are none."""
        try:
            return self._services.submit(job)
        except FrameTooLarge:
            raise
        except CorosrvError as error:
            return error

    def _go_on(
        self, job: InferJob, answers: CallAnswers | CorosrvError, items: Sequence[InferItem] = ()
    ) -> CorosrvError | None:
        """Goes on behind the submission; `items`: the first of the answers."""
        error: CorosrvError | None
        try:
            error = answers if isinstance(answers, CorosrvError) else self._follow(job, answers, items)
        except FrameTooLarge:
            raise
        except CorosrvError as failure:
            error = failure
        if error is None or self._has_begun or self._is_cancelled:
            return error
        delegated = self._services.delegate(job, error)
        return error if delegated is None else self._follow(job, delegated)

    def _follow(self, job: InferJob, answers: CallAnswers, items: Sequence[InferItem] = ()) -> CorosrvError | None:
        """Sends all answers; returns how the call ended. Waits."""
        with contextlib.closing(answers) as reader:
            self._reader = reader
            if self._is_cancelled:
                reader.cancel()
            for item in chain(items, reader):
                if isinstance(item, InferEnd):
                    return item.error
                self._has_begun = True
                self._wait_for_room()
                if not self._is_cancelled:
                    is_of_capability = isinstance(job.target, CapabilityTarget)
                    more = _capability_parameter(reader.card) if is_of_capability else {}
                    self._send_outputs(item, reader.card, more)
        return HandlerFailed("the call ended without an answer")

    def _wait_for_room(self) -> None:
        while self._n_untaken >= ASK_WINDOW and not self._is_cancelled:
            self._has_room = Event()
            self._has_room.wait()
            self._has_room = None

    def _send_outputs(self, item: InferOutputs, card: HandlerCard, parameters: Mapping[str, Parameter]) -> None:
        with TensorPacking() as packing:
            outputs = packing.pack(item.outputs)
            is_final = item.is_final or not card.is_stream
            message = AskOutputs(
                self.number, outputs, {**item.parameters, **parameters}, is_final, card.name, card.version
            )
            fds = call_in_thread(packing.fds) if packing.n_attached >= LONG_COPY else packing.fds()
            self._n_untaken += 1
            self._send(message, fds)


def _raise(error: Exception) -> NoReturn:
    raise error


def end_of(number: int, card: HandlerCard | None, error: CorosrvError | None, is_replayed: bool = False) -> AskEnd:
    """Makes the last message of an ask."""
    model, version = ("", "") if card is None else (card.name, card.version)
    return AskEnd(number, model, version, None if error is None else Fault.from_error(error), is_replayed)


def _job(ask: Ask, content: memoryview, terms: Terms, are_checked: bool, services: CallServices) -> InferJob:
    """Makes the job of an ask, in the greenlet that runs it. Raises InvalidTensor, what content_of raises, and
    Unauthorized for a caller who has just lost the key."""
    if services.accounts is not None and (account := services.accounts.enter(terms.caller)) is not None:
        terms = account.terms(terms)
        terms = terms if ask.tier is None else replace(terms, tier=ask.tier)
    (inputs,) = make_tensors([ask.request.inputs], content, are_checked=are_checked)
    if ask.object_inputs:
        inputs = _with_objects(
            inputs, ask.object_inputs, lambda object_id: content_of(services.objects, object_id, terms.caller)
        )
    outputs = None if ask.request.outputs is None else tuple(ask.request.outputs)
    request = InferRequest(inputs, ask.request.id, ask.request.parameters, outputs)
    return InferJob(_target_of(ask), request, ask.stream, terms)


def _with_objects(
    inputs: Sequence[Tensor], object_inputs: Sequence[ObjectInput], find: Callable[[str], memoryview]
) -> tuple[Tensor, ...]:
    """Returns all inputs in their order, with those that are objects at their places."""
    joined = list(inputs)
    for wire in sorted(object_inputs, key=lambda wire: wire.position):
        raw = find(wire.object_id)
        joined.insert(wire.position, Tensor(wire.name, wire.datatype, wire.shape, raw=raw, parameters=wire.parameters))
    return tuple(joined)


def _capability_parameter(card: HandlerCard) -> dict[str, Parameter]:
    """Tells an asker of a capability which one was matched."""
    return {} if card.capability is None else {"capability": msgspec.json.encode(card.capability).decode()}


def _target_of(ask: Ask) -> Target:
    if ask.capability is not None:
        return CapabilityTarget(ask.capability, ask.prefer, ask.is_fuzzy)
    return ModelTarget(ask.model, ask.version)
