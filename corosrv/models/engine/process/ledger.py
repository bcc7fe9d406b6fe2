"""A front's jobs in an engine's process, from their submission to their end, through crashes of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import gevent
from gevent.event import AsyncResult

from corosrv.base import errors
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.models.engine.binding import Task
from corosrv.models.engine.process.jobs import ENGINE_GONE, DeathSuspects, RemoteJob
from corosrv.models.engine.process.messages import (
    CancelTasks,
    EndThoughts,
    ForgetTasks,
    FromFront,
    SubmitTasks,
    TasksAccepted,
    TasksDeclined,
)

_RETRY = 1.0  # seconds after which a full queue is asked again for the place of a job that is resumed


class JobLedger:
    """The jobs of one front that have not ended. Belongs to the thread of one hub.

    A job outlives the engine that runs it: the next engine is asked to go on with it.
    """

    def __init__(self, send: Callable[[FromFront], None]) -> None:
        """`send` passes a message to the engine that is there, if any."""
        self._send = send
        self.jobs: dict[int, RemoteJob] = {}
        self.submissions: dict[int, AsyncResult[None]] = {}  # of jobs that the engine has not taken yet
        self.suspects = DeathSuspects()
        self._suspect: int | None = None  # the suspect that the engine runs
        self._context = 0  # tokens that a sequence may have
        self._n_crashes = 0

    def submit(self, job: RemoteJob, tasks: Sequence[Task]) -> None:
        """Sends a job; waits until the engine has taken it. Raises the error with which it is declined, or ended."""
        self.jobs[job.number] = job
        waiting = self.submissions[job.number] = AsyncResult()
        try:
            self._send_tasks(job, tasks)
            waiting.get()
        except BaseException:
            self.forget(job.number)
            raise

    def _send_tasks(self, job: RemoteJob, tasks: Sequence[Task]) -> None:
        is_suspect = self.suspects.is_suspect(job)
        self._send(SubmitTasks(job.number, list(tasks), job.caller, job.is_streamed, is_suspect))

    def add(self, by_job: Mapping[int, Sequence[Chunk]]) -> None:
        """Passes chunks on to the readers of their jobs, and ends the jobs whose last chunk has come."""
        for number, chunks in by_job.items():
            if (job := self.jobs.get(number)) is not None:
                job.add(chunks)
                if job.is_over:
                    self._end(job)

    def answer(self, message: TasksAccepted | TasksDeclined) -> None:
        """Handles what the engine says of a job that it was asked to run."""
        waiting = self.submissions.pop(message.number, None)
        job = self.jobs.get(message.number)
        if isinstance(message, TasksAccepted):
            if job is not None and message.adapter_scales:
                job.keep_scales(message.adapter_scales)
            if job is not None and self.suspects.is_suspect(job):
                self._suspect = job.number
            if waiting is not None:
                waiting.set(None)
            elif job is not None and job.is_cancelled:  # while it waited for its turn, where a cancel finds nothing
                self._send(CancelTasks(job.number))
            elif job is not None and job.ends_thoughts:  # of a resumed job: the engine before this one was asked
                self._send(EndThoughts(job.number))
        elif waiting is not None:
            waiting.set_exception(message.fault.error())
        elif job is not None and message.fault.code == errors.QueueFull.code:
            # A resumed one, whose place jobs of other fronts have taken meanwhile.
            if self._suspect == job.number:
                self._suspect = None
            gevent.spawn_later(_RETRY, self._resume_again, job, self._n_crashes)
        elif job is not None:  # a resumed one
            job.fail(message.fault.message, message.fault.code or ENGINE_GONE)
            self._end(job)

    def resume_all(self, context: int) -> None:
        """Asks an engine that has just loaded its model to go on with every job; `context`: tokens of a sequence."""
        self._context = context
        for job in list(self.jobs.values()):
            self._resume(job)

    def _resume(self, job: RemoteJob) -> None:
        tasks = job.unfinished_tasks(self._context)
        if job.is_cancelled or not tasks:
            job.fail("", "", Finish.CANCELLED)
            self._end(job)
            return
        self._send_tasks(job, tasks)

    def _resume_again(self, job: RemoteJob, n_crashes: int) -> None:
        """Resumes a job, unless it has ended, or another engine was asked meanwhile."""
        if n_crashes == self._n_crashes and job.number in self.jobs:
            self._resume(job)

    def note_loss(self, has_crashed: bool) -> RemoteJob | None:
        """Records that the engine is gone; `has_crashed`: by itself, and nobody has killed it.

        Returns the job that has crashed three engines, which has ended with an error, if there is one.
        """
        self._n_crashes += 1
        suspect = None if self._suspect is None else self.jobs.get(self._suspect)
        self._suspect = None
        if not has_crashed:
            return None
        killer = self.suspects.note_death(self.jobs.values(), suspect, time.monotonic())
        if killer is not None:
            killer.fail("this request has ended the engine three times")
            self._end(killer)
        return killer

    def cancel(self, number: int) -> None:
        """Asks the engine to cancel a job, whose last chunk follows."""
        if (job := self.jobs.get(number)) is not None:
            job.is_cancelled = True
            self._send(CancelTasks(number))

    def end_thoughts(self, number: int) -> None:
        """Asks the engine to end a job's thoughts, also one that takes the job over."""
        if (job := self.jobs.get(number)) is not None:
            job.ends_thoughts = True
            self._send(EndThoughts(number))

    def forget(self, number: int) -> None:
        """Ends a job of which nothing more is read."""
        self.submissions.pop(number, None)
        if (job := self.jobs.get(number)) is not None:
            self._end(job)
            self._send(ForgetTasks(number))

    def fail_all(self, message: str, code: str = ENGINE_GONE) -> None:
        """Ends every job with an error chunk; an engine that is there forgets them."""
        for job in list(self.jobs.values()):
            job.fail(message, code)
            self._end(job)
            self._send(ForgetTasks(job.number))

    def _end(self, job: RemoteJob) -> None:
        """Forgets a job that has ended; whoever waits until it is taken hears that it will not be."""
        self.jobs.pop(job.number, None)
        if (waiting := self.submissions.pop(job.number, None)) is not None:
            waiting.set_exception(errors.ShuttingDown("the engine has not taken the request: it was stopped, or lost"))
        if self._suspect == job.number:
            self._suspect = None
