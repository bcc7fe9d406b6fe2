"""The services of a server for the calls that other processes make, and one such call from submission to end.

Handlers make them, and gRPC's clients by the process that serves them; see corosrv.workers.worker.parent.asks.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NoReturn, Protocol

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub

from corosrv.base.errors import CorosrvError, FrameTooLarge, HandlerFailed, NotOffered
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs.infer import (
    CapabilityTarget,
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferWorker,
)
from corosrv.contracts.jobs.terms import Account, Terms, TracePart
from corosrv.formats.tensors import Parameter, check_inputs
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire.calls import ASK_WINDOW, AskEnd, AskOutputs
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking

log = logging.getLogger("corosrv.worker")

LONG_COPY = 4 << 20  # bytes whose copying would hold the hub for a millisecond or more


class CallAccount(Account, Protocol):
    """The account of an API key, with which calls are made."""

    def terms(self, terms: Terms) -> Terms:
        """Returns the terms with what the key adds."""


class CallAccounts(Protocol):
    """The accounts of the API keys that are let in."""

    def enter(self, caller: str) -> CallAccount | None:
        """Returns the account of a caller, with whose rights this greenlet goes on; None where no key is needed.

        May wait. Raises Unauthorized.
        """

    def admit(self, caller: str) -> None:
        """Counts a request of a caller. May wait. Raises Unauthorized and LimitReached."""


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


Submit = Callable[[InferJob], CallAnswers]
# Of a call, and the error that it ended in here before it had an answer; None where that error stands. Never waits.
Delegate = Callable[[InferJob, CorosrvError], CallAnswers | None]
BeginCall = Callable[[Mapping[str, str], bool], TracePart]  # of headers, and whether the call is a stream
SendAnswer = Callable[[AskOutputs | AskEnd, Sequence[int]], None]  # raises what GeventChannel.send raises


def submit_to(worker: InferWorker) -> Callable[[InferJob], InferReader]:
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


class FollowedAsk:
    """Follows one ask from its call's submission to its end: a greenlet that passes the reader's items on.

    A short one has none while it waits: most calls have one answer, which the hub itself can send.
    """

    def __init__(
        self,
        number: int,
        make_job: Callable[[], InferJob],
        services: CallServices,
        send: SendAnswer,
        on_end: Callable[[FollowedAsk, AskEnd], None],
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
        """Starts it. `is_short`: its job is made without waiting, and one answer is wanted."""
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


def _capability_parameter(card: HandlerCard) -> dict[str, Parameter]:
    """Tells an asker of a capability which one was matched."""
    return {} if card.capability is None else {"capability": msgspec.json.encode(card.capability).decode()}
