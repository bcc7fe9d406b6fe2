"""The front's side of jobs that run in an engine's process: their readers, and what it takes to resume them."""

from __future__ import annotations

import hashlib
import struct
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import msgspec

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.models.engine.binding import Task, TaskKind
from corosrv.models.engine.process.messages import WINDOW
from corosrv.models.engine.process.session import size_of

ENGINE_GONE = "engine_gone"  # the code of an answer that ended with the engine
_INT32_BYTES = 4
_REPORT = WINDOW // 4  # bytes after which the engine's process hears of what was read


class RemoteReader(BufferedReader[Chunk]):
    """The receiving end of one job that runs in another process. Belongs to the thread of the hub that submitted it."""

    def __init__(
        self,
        cancel: Callable[[], None],
        end_thoughts: Callable[[], None],
        consumed: Callable[[int], None],
        forget: Callable[[], None],
        forget_later: Callable[[], None],
    ) -> None:
        """`consumed` is told of bytes that were read; `forget` is called once nothing more is read.

        `forget_later` does the same from any thread, and in the midst of anything.
        """
        super().__init__(cancel)
        self.end_thoughts = end_thoughts  # ends those that have a budget as if it were spent
        self._consumed = consumed
        self._forget = forget
        self._forget_later = forget_later
        self._n_unreported = 0
        self.image_tokens: Sequence[int] = ()  # of each task's prompt, for its terminal chunk

    def take_nowait(self) -> list[Chunk]:
        chunks = super().take_nowait()
        self._n_unreported += size_of(chunks)
        if self._n_unreported > _REPORT:
            self._consumed(self._n_unreported)
            self._n_unreported = 0
        if self.image_tokens:
            return [
                chunk
                if chunk.finish is None
                else msgspec.structs.replace(chunk, image_tokens=self.image_tokens[chunk.index])
                for chunk in chunks
            ]
        return chunks

    def close(self) -> None:
        super().close()
        self._forget()

    def __del__(self) -> None:
        # Dropped without close(), perhaps while garbage is collected.
        if not self._is_closed and not self._has_ended:
            self._forget_later()


class _TaskJournal:
    """Keeps what one task has said so far: enough for another engine to go on."""

    __slots__ = ("_before", "_last", "_n_again", "_n_scored", "generated", "has_ended", "n_sent_bytes", "state")

    def __init__(self, task: Task) -> None:
        self.generated = bytearray(struct.pack(f"={len(task.generated)}i", *task.generated))  # int32
        self.state = b""
        self.n_sent_bytes = task.sent_bytes
        self.has_ended = False
        self._last: Chunk | None = None  # that told figures
        self._before: Chunk | None = None  # the last one of the engines that were lost
        self._n_scored = 0  # tokens of the prompt that were told of
        self._n_again = 0  # of these, those that another engine will tell of again

    def note(self, chunk: Chunk) -> Chunk:
        """Notes a chunk down; returns it as it goes on behind what other engines have said."""
        if self._before is not None:
            chunk = _added(chunk, self._before)
        if chunk.prompt_info:
            n_again = min(self._n_again, len(chunk.prompt_info))
            self._n_again -= n_again
            self._n_scored += len(chunk.prompt_info) - n_again
            if n_again:
                chunk = msgspec.structs.replace(chunk, prompt_info=chunk.prompt_info[n_again:])
        if chunk.ids or chunk.read_tokens >= 0:
            self._last = chunk
        self.generated += chunk.ids
        self.state = chunk.state or self.state
        if chunk.finish is not Finish.ERROR:
            self.n_sent_bytes += len(chunk.text.encode())
        self.has_ended = chunk.finish is not None
        return chunk

    def change_engine(self) -> None:
        """Takes note that another engine goes on."""
        self._before = self._last
        self._n_again = self._n_scored


def _added(chunk: Chunk, before: Chunk) -> Chunk:
    """Returns a chunk with the figures of the whole answer; what is known of the prompt is what was told first."""
    return msgspec.structs.replace(
        chunk,
        cached_tokens=before.cached_tokens,
        prompt_ms=before.prompt_ms + chunk.prompt_ms,
        decode_ms=before.decode_ms + chunk.decode_ms,
        compute_ms=before.compute_ms + chunk.compute_ms,
        drafted_tokens=before.drafted_tokens + chunk.drafted_tokens,
        accepted_tokens=before.accepted_tokens + chunk.accepted_tokens,
    )


class RemoteJob:
    """A job that was submitted, with its journal. Belongs to the thread of one hub."""

    def __init__(
        self, number: int, tasks: Sequence[Task], caller: str, is_streamed: bool, reader: RemoteReader
    ) -> None:
        self.number = number
        self.caller = caller
        self.is_streamed = is_streamed
        self._reader = weakref.ref(reader)  # whoever reads keeps it
        self.is_cancelled = False
        self.ends_thoughts = False  # its reader has asked for that
        self._tasks = list(tasks)
        self._journals = [_TaskJournal(task) for task in tasks]
        self._running = list(range(len(tasks)))  # of the tasks that the engine has, their places in the job

    def keep_scales(self, scales: Sequence[float]) -> None:
        """Keeps the scales of adapters with which the engine runs the tasks: another one is to go on with them."""
        self._tasks = [
            msgspec.structs.replace(task, adapter_scales=scales) if task.adapter_scales is None else task
            for task in self._tasks
        ]

    @property
    def is_over(self) -> bool:
        """Returns whether every task has had its terminal chunk."""
        return all(journal.has_ended for journal in self._journals)

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Passes chunks on to the reader, and notes them down."""
        for arrived in chunks:
            place = self._running[arrived.index]
            journal = self._journals[place]
            chunk = arrived if arrived.index == place else msgspec.structs.replace(arrived, index=place)
            self._give(journal.note(chunk))

    def _give(self, chunk: Chunk) -> None:
        if (reader := self._reader()) is not None:
            reader.add_item(chunk, 0)
            if self.is_over:
                reader.finish()

    def fail(self, message: str, code: str = ENGINE_GONE, finish: Finish = Finish.ERROR) -> None:
        """Ends every task that has not ended."""
        for place, journal in enumerate(self._journals):
            if not journal.has_ended:
                journal.has_ended = True
                self._give(Chunk(place, message, 0, finish, code=code))

    def unfinished_tasks(self, context: int) -> list[Task]:
        """Returns the unfinished tasks as an engine can go on with them; ends those with which it cannot.

        `context`: the tokens that a sequence may have.
        """
        tasks = []
        self._running = []
        for place, (task, journal) in enumerate(zip(self._tasks, self._journals, strict=True)):
            if journal.has_ended:
                continue
            n_tokens = len(task.tokens) + len(journal.generated) // _INT32_BYTES
            if task.context_shift and n_tokens >= context:
                journal.has_ended = True  # what a shifted context held depends on when it was shifted
                self._give(
                    Chunk(
                        place,
                        "the engine was lost, and this answer had outgrown its context",
                        0,
                        Finish.ERROR,
                        code=ENGINE_GONE,
                    )
                )
                continue
            self._running.append(place)
            journal.change_engine()
            tasks.append(resumed(task, journal.generated, journal.state, journal.n_sent_bytes))
        return tasks

    def fingerprint(self) -> bytes:
        """Hashes what the engine computes for this job."""
        digest = hashlib.blake2b(digest_size=16)
        for task in self._tasks:
            digest.update(msgspec.msgpack.encode((task.tokens, task.sampling, task.rows)))
        return digest.digest()


def resumed(task: Task, generated: bytes | bytearray, state: bytes, n_sent_bytes: int) -> Task:
    """Returns the task as it goes on behind what was generated."""
    if not generated:
        return task
    ids = memoryview(generated).cast("i").tolist()
    return msgspec.structs.replace(task, generated=ids, state=state, sent_bytes=n_sent_bytes)


def tells_state(task: Task) -> Task:
    """Returns the task with chunks from which it can be resumed."""
    return msgspec.structs.replace(task, tells_state=True) if task.kind is TaskKind.GENERATE else task


SECOND_DEATH = 60.0  # seconds after a death in which another one is no chance
BANNED = 600.0  # seconds for which what has killed engines is refused


class DeathSuspects:
    """Finds the job of which engines die, from what ran when they did.

    A first death says nothing. What ran at two deaths in a row is suspected, and runs alone afterwards, one suspect at
    a time; the one that runs at a third death is found.
    """

    def __init__(self) -> None:
        self._died_at = float("-inf")
        self._ran: set[int] = set()  # numbers of the jobs that ran at the last death
        self._suspects: set[int] = set()
        self._banned: dict[bytes, float] = {}

    def note_death(self, jobs: Iterable[RemoteJob], lone_suspect: RemoteJob | None, now: float) -> RemoteJob | None:
        """Takes note of a death while these jobs ran, `lone_suspect` the only suspect among them.

        Returns the job of which the engine has died, if that is known now.
        """
        running = {job.number for job in jobs}
        is_repeated = now - self._died_at < SECOND_DEATH
        self._died_at = now
        if lone_suspect is not None:
            self._suspects.discard(lone_suspect.number)
            self.ban(lone_suspect.fingerprint(), BANNED, now)
        elif is_repeated:
            self._suspects |= self._ran & running
        self._suspects &= running
        self._ran = running
        return lone_suspect

    def ban(self, fingerprint: bytes, seconds: float, now: float) -> None:
        """Refuses jobs of this fingerprint from now on; not for longer than others have said before."""
        self._banned = {key: until for key, until in self._banned.items() if until > now}
        self._banned.setdefault(fingerprint, now + seconds)

    def bans(self, now: float) -> dict[bytes, float]:
        """Returns what is refused, and the seconds for which it is."""
        return {key: until - now for key, until in self._banned.items() if until > now}

    def is_suspect(self, job: RemoteJob) -> bool:
        """Returns whether a job may be the one of which engines die."""
        return job.number in self._suspects

    def is_banned(self, job: RemoteJob, now: float | None = None) -> bool:
        """Returns whether a job is like one that was found lately."""
        if not self._banned:
            return False
        return self._banned.get(job.fingerprint(), 0.0) > (time.monotonic() if now is None else now)
