"""Serves one front of an engine's process: its jobs, their chunks, and its questions about slots."""

from __future__ import annotations

import _socket
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub

from corosrv.base.errors import BadFrame, ChannelClosed, CorosrvError, ProtocolError, Refused, Starting
from corosrv.contracts.jobs import Chunk
from corosrv.models.engine import Engine
from corosrv.models.engine.process.messages import (
    MAX_FRAME,
    PROTOCOL,
    WINDOW,
    AdapterScales,
    BanTasks,
    CancelTasks,
    ChunksRead,
    EndThoughts,
    EngineFailed,
    EngineHello,
    EngineLoaded,
    EngineRefusal,
    EngineRelease,
    ForgetTasks,
    FromFront,
    FrontHello,
    ReleaseIfIdle,
    SlotAnswer,
    SlotQuestion,
    SlotReply,
    SubmitTasks,
    TaskChunks,
    TasksAccepted,
    TasksDeclined,
    ToFront,
    engine_codec,
)
from corosrv.models.engine.reader import Reader
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.gevent_channel import GeventChannel

log = logging.getLogger("corosrv.engine")

_DELIVERY = 10.0  # seconds in which a front takes the end of a suspect from its socket, before the next suspect runs
_LOOK = 0.01  # seconds between two looks at that
MOST_UNSENT = 8 << 20  # bytes that a front may leave in its socket before all of its jobs are paused
_CHUNK_BYTES = 64  # of a chunk besides its text, and of each token that it tells of


def size_of(chunks: list[Chunk]) -> int:
    """Returns the bytes that chunks count for in a job's window; both sides count alike."""
    n_bytes = 0
    for chunk in chunks:
        n_bytes += _CHUNK_BYTES + len(chunk.text) + len(chunk.vector)
        for token in (*chunk.tokens, *chunk.prompt_info):
            n_bytes += _CHUNK_BYTES * (1 + len(token.top))
    return n_bytes


class SharedEngine(Protocol):
    """Stands for what the sessions of one process share."""

    engine: Engine
    digest: str

    @property
    def state(self) -> EngineLoaded | EngineFailed | None:
        """Says whether the model is loaded or cannot be; None while it is being loaded."""

    def note_change(self) -> None:
        """Tells the fronts of the counters soon: something began or ended."""

    @property
    def bans(self) -> Iterable[BanTasks]:
        """The bans that fronts which come are told."""

    def tell_ban(self, ban: BanTasks) -> None:
        """Tells all fronts, also those that come, what engines have died of."""

    scales: AdapterScales | None  # as somebody has set them

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        """Sets the scales of adapters, and tells all fronts, also those that come. Raises Refused."""

    def take_scales(self, scales: AdapterScales) -> None:
        """Sets the scales that a front knows of the engine before, unless later ones are set. Raises Refused."""

    def release_if_idle(self) -> bool:
        """Asks all fronts to leave, unless something runs; returns whether it did."""

    def alone_among_suspects(self) -> AbstractContextManager[None]:
        """Waits until no other task runs that the engine may die of, whichever front it is of."""


class _Running:
    """A job of this front: its reader, and how much of its chunks the front has not read."""

    __slots__ = ("has_room", "is_forgotten", "n_unread", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.n_unread = 0
        self.has_room: Event | None = None  # while it waits
        self.is_forgotten = False


class FrontSession:
    """One connected front. Belongs to the thread of the host's hub."""

    def __init__(self, host: SharedEngine, connection: _socket.socket) -> None:
        self._host = host
        self._channel: GeventChannel[ToFront, FromFront] = GeventChannel(connection, engine_codec(), MAX_FRAME)
        self._jobs: dict[int, _Running | None] = {}  # None: being submitted
        self._unsent: dict[int, list[Chunk]] = {}
        self._is_welcome = False
        self._flush: Any = None  # that is due at the end of this turn of the hub

    def serve(self) -> None:
        """Carries out what the front asks for, until it leaves. Waits."""
        try:
            if not self._greet():
                return
            while (message := self._channel.receive()) is not None:
                self._handle(message)
        except (BadFrame, ProtocolError) as fault:
            log.error("a front was cut off: %s", fault)
        except ChannelClosed:
            pass

    def _greet(self) -> bool:
        with gevent.Timeout(10.0, False):
            greeting = self._channel.receive()
            if (
                isinstance(greeting, FrontHello)
                and greeting.protocol == PROTOCOL
                and greeting.digest == self._host.digest
            ):
                self._channel.send(EngineHello(PROTOCOL, os.getpid()))
                self._is_welcome = True
                for ban in self._host.bans:
                    self.send(ban)
                self.tell_state()
                if self._host.scales is not None:
                    self.send(self._host.scales)
                return True
            self._channel.send(EngineRefusal("this engine's process is of another version, or of another model"))
        return False

    def tell_state(self) -> None:
        """Tells how the load has ended, if it has."""
        if (state := self._host.state) is not None:
            self.send(state)

    def send(self, message: ToFront) -> None:
        """Sends a message to a front that has greeted. Never waits."""
        if self._is_welcome:
            with contextlib.suppress(ChannelClosed):
                self._channel.send(message)

    def _handle(self, message: FromFront) -> None:
        if isinstance(message, SubmitTasks):
            if message.number in self._jobs:
                raise ProtocolError(f"a front has used the number {message.number} twice")
            self._jobs[message.number] = None
            gevent.spawn(self._run, message)
        elif isinstance(message, ChunksRead):
            self._count_read(message)
        elif isinstance(message, CancelTasks):
            if (job := self._jobs.get(message.number)) is not None:
                job.reader.cancel()
        elif isinstance(message, EndThoughts):
            if (job := self._jobs.get(message.number)) is not None:
                job.reader.end_thoughts()
        elif isinstance(message, ForgetTasks):
            self._forget(message.number)
        elif isinstance(message, SlotQuestion):
            gevent.spawn(self._answer, message)
        elif isinstance(message, BanTasks):
            self._host.tell_ban(message)
        elif isinstance(message, AdapterScales):
            try:
                self._host.take_scales(message)
            except Refused as error:
                raise ProtocolError(f"a front tells scales that this engine cannot have: {error}") from None
        elif isinstance(message, ReleaseIfIdle):
            if not self._host.release_if_idle():
                self.send(EngineRelease(is_refused=True))
        else:
            raise ProtocolError("a front has greeted twice")

    # Jobs

    def _run(self, submit: SubmitTasks) -> None:
        """Submits a job and passes its chunks on until it ends; a suspect when no other one runs. Waits."""
        if not submit.is_suspect:
            self._run_now(self._with_scales(submit))
            return
        with self._host.alone_among_suspects():
            submit = self._with_scales(submit)
            # Told before it runs, for the engine may die of it at once; its end before the next one does.
            self._accept(submit)
            self._run_now(submit)
            self._deliver()

    def _with_scales(self, submit: SubmitTasks) -> SubmitTasks:
        """Gives tasks without scales of adapters those that are set now, which their front is told."""
        scales = [adapter.scale for adapter in self._host.engine.adapters()]
        if not scales:
            return submit
        tasks = [
            msgspec.structs.replace(task, adapter_scales=scales) if task.adapter_scales is None else task
            for task in submit.tasks
        ]
        return msgspec.structs.replace(submit, tasks=tasks)

    def _accept(self, submit: SubmitTasks) -> None:
        self.send(TasksAccepted(submit.number, list(submit.tasks[0].adapter_scales or ()) if submit.tasks else []))

    def _run_now(self, submit: SubmitTasks) -> None:
        try:
            self._run_accepted(submit)
        except CorosrvError as error:
            self.send(TasksDeclined(submit.number, Fault.from_error(error)))
        except Exception as error:
            log.exception("a job could not be run")
            self.send(
                TasksDeclined(
                    submit.number, Fault.from_error(CorosrvError(f"the engine failed: {type(error).__name__}"))
                )
            )
        finally:
            self._jobs.pop(submit.number, None)

    def _deliver(self) -> None:
        """Sends all chunks, and waits until the socket has them: then the front gets them even if this process dies."""
        self._send_chunks()
        with gevent.Timeout(_DELIVERY, False):
            while self._channel.n_unsent and not self._channel.is_closed:
                gevent.sleep(_LOOK)

    def _run_accepted(self, submit: SubmitTasks) -> None:
        if submit.number not in self._jobs:
            return  # forgotten while it waited
        if not isinstance(self._host.state, EngineLoaded):
            raise Starting("the model is still loading")
        with self._host.engine.run(submit.tasks, submit.caller, submit.is_streamed) as reader:
            if submit.number not in self._jobs:
                return
            job = self._jobs[submit.number] = _Running(reader)
            if not submit.is_suspect:
                self._accept(submit)
            self._host.note_change()
            self._pass_on(submit.number, job)

    def _pass_on(self, number: int, job: _Running) -> None:
        def keep(chunks: list[Chunk]) -> bool:
            job.n_unread += size_of(chunks)
            self._unsent.setdefault(number, []).extend(chunks)
            if self._flush is None:
                self._flush = get_hub().loop.run_callback(self._send_chunks)
            return not job.is_forgotten and not self._is_full(job)

        while not job.reader.is_finished and not job.is_forgotten:
            job.reader.pump(keep)
            while self._is_full(job) and not job.is_forgotten and not job.reader.is_finished:
                job.has_room = Event()
                job.has_room.wait(0.05 if self._channel.n_unsent > MOST_UNSENT else None)
                job.has_room = None

    def _is_full(self, job: _Running) -> bool:
        return job.n_unread > WINDOW or self._channel.n_unsent > MOST_UNSENT

    def _send_chunks(self) -> None:
        """Sends what all jobs have brought in this turn of the hub, in one message."""
        self._flush = None
        unsent, self._unsent = self._unsent, {}
        if unsent:
            self.send(TaskChunks(unsent))
            if any(chunks[-1].finish is not None for chunks in unsent.values()):
                self._host.note_change()

    def _count_read(self, message: ChunksRead) -> None:
        if (job := self._jobs.get(message.number)) is not None:
            job.n_unread -= message.n_bytes
            if job.has_room is not None:
                job.has_room.set()

    def _forget(self, number: int) -> None:
        job = self._jobs.pop(number, None)
        self._unsent.pop(number, None)
        if job is not None:
            job.is_forgotten = True
            job.reader.cancel()
            if job.has_room is not None:
                job.has_room.set()

    # Slots and adapters

    def _answer(self, ask: SlotQuestion) -> None:
        try:
            self.send(SlotReply(ask.id, self._find(ask)))
        except CorosrvError as error:
            self.send(SlotReply(ask.id, fault=Fault.from_error(error)))
        except Exception as error:
            log.exception("a question of a front could not be answered")
            self.send(
                SlotReply(ask.id, fault=Fault.from_error(CorosrvError(f"the engine failed: {type(error).__name__}")))
            )

    def _find(self, ask: SlotQuestion) -> SlotAnswer:
        engine = self._host.engine
        if ask.action == "slots":
            return SlotAnswer(slots=list(engine.slots()))
        if ask.action == "save_slot":
            file = engine.save_slot(ask.slot, ask.path, ask.caller)
            return SlotAnswer(n_tokens=file.n_tokens, n_bytes=file.n_bytes)
        if ask.action == "restore_slot":
            file = engine.restore_slot(ask.slot, ask.path, ask.caller)
            return SlotAnswer(n_tokens=file.n_tokens, n_bytes=file.n_bytes)
        if ask.action == "erase_slot":
            return SlotAnswer(n_tokens=engine.erase_slot(ask.slot, ask.caller))
        if ask.action == "set_adapters":
            self._host.set_adapters(ask.scales)
        elif ask.action != "adapters":
            raise ProtocolError(f"a front asks for {ask.action!r}, which this process does not know")
        return SlotAnswer(adapters=list(engine.adapters()))

    def close(self) -> None:
        """Ends the connection, and the jobs of this front. Twice is harmless."""
        for number in list(self._jobs):
            self._forget(number)
        self._channel.close()
