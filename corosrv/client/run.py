"""Runs a rollout with asyncio: a window of groups at once, each of which ends once.

`RetryRule` decides whether a request is sent again, and when.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from corosrv.base.errors import Misuse
from corosrv.client.groups import GroupState, RolloutGroup, RolloutLedger, read_answers
from corosrv.client.http import ConnectionBroken, GroupRequest, HttpConnections, HttpReply, RequestMaker

MAX_PAUSE = 30.0  # seconds
_FIRST_PAUSE = 0.1
_AGAIN = frozenset({408, 425, 500, 502, 503, 504})  # what another try may mend
_BUSY = frozenset({409, 429, 503})  # the server says when to come back


class AttemptFailed(Exception):
    """A request has failed. A signal within this package, caught by RolloutRun.

    `may_repeat`: another try may go well. `pause`: seconds after which the server wants it, which is no fault and
    costs no retry; None where it says nothing.
    """

    def __init__(self, reason: str, *, may_repeat: bool, pause: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_repeat = may_repeat
        self.pause = pause


def failed_answer(status: int, retry_after: str, message: str) -> AttemptFailed:
    """Makes the failure that an error answer means. `retry_after`: the header's value, empty without one."""
    reason = f"{status} {message}".strip()
    told = float(retry_after) if status in _BUSY and retry_after.isascii() and retry_after.isdigit() else None
    return AttemptFailed(reason, may_repeat=told is not None or status in _AGAIN, pause=told)


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Allows `retries` tries after the first, with pauses that double, jittered; the server's own are as it says."""

    retries: int = 3

    def pause(self, failure: AttemptFailed, n_failures: int, left: float, jitter: float) -> float | None:
        """Returns the seconds to wait before the next try; None: there is none.

        `n_failures`: of this request, this one included, without those whose pause the server told. `left`: seconds
        until its answer is of no use. `jitter`: from 0 to 1.
        """
        if not failure.may_repeat:
            return None
        if failure.pause is not None:
            # Up to half as long again, so that not all come back at once.
            pause = min(failure.pause, MAX_PAUSE) * (1 + jitter / 2)
        elif n_failures > self.retries:
            return None
        else:
            pause = min(_FIRST_PAUSE * 2 ** (n_failures - 1), MAX_PAUSE) * (0.5 + jitter / 2)
        return pause if pause < left else None


ABORTED = "aborted"
_ABORT_INTERVAL = 0.1  # seconds between two tries to abort a group that the server does not know yet
_END = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Limits of a rollout: groups at once, and seconds."""

    concurrency: int = 64
    retries: int = 3
    timeout: float = 600.0  # of a group, retries included
    grace: float = 10.0  # that an abort gives the server for partial answers

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise Misuse(f"concurrency must be at least 1, not {self.concurrency}")
        if self.retries < 0 or self.timeout <= 0 or self.grace < 0:
            raise Misuse("retries and grace must not be negative, and timeout must be over 0")


class GroupLost(Exception):
    """There are no answers to a prompt. A signal within this module."""


@dataclass(slots=True)
class _RequestReply:
    """Holds what one request has brought."""

    members: dict[str, Any]
    n_attempts: int


@dataclass(slots=True)
class _RunningGroup:
    """Holds what an abort needs of a group that runs: its task, and the requests that are at the server."""

    task: asyncio.Task[RolloutGroup] | None = None
    sent: set[str] = field(default_factory=set)


class RolloutRun:
    """Submits prompts and yields their groups as they end. Belongs to one event loop.

    At most `concurrency` groups run, and as many wait to be taken: whoever takes them slowly slows the rollout down.
    """

    def __init__(
        self, prompts: Iterable[Any], maker: RequestMaker, connections: HttpConnections, limits: RolloutLimits
    ) -> None:
        self.ledger = RolloutLedger()
        self._prompts = iter(prompts)
        self._maker = maker
        self._connections = connections
        self._limits = limits
        self._rule = RetryRule(limits.retries)
        self._permits = asyncio.Semaphore(limits.concurrency)
        self._room = asyncio.Semaphore(2 * limits.concurrency)
        self._ready: deque[RolloutGroup] = deque()
        self._running: dict[int, _RunningGroup] = {}
        self._aborting: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._is_aborted = asyncio.Event()
        self._failure: BaseException | None = None
        self._feeder = asyncio.create_task(self._feed())

    # For whoever takes the groups.

    async def take(self) -> RolloutGroup | None:
        """Returns the next group that has ended, None after the last. Raises what iterating over the prompts raised."""
        while not self._ready:
            if self._feeder.done() and not self._running:
                if self._failure is not None:
                    raise self._failure
                return None
            self._news.clear()
            await self._news.wait()
        self._room.release()
        return self._ready.popleft()

    def abort(self, *, keeps_partial: bool) -> None:
        """Submits no more, and ends what runs; never waits. A second abort may give up what the first wanted to keep.

        What had been answered is still to be taken, and with `keeps_partial` what the server has of the others.
        """
        is_first = not self._is_aborted.is_set()
        self._is_aborted.set()
        self._feeder.cancel()
        for group in self._running.values():
            if group.task is None:
                continue
            if keeps_partial and is_first and group.sent:
                self._spawn_abort(group)
            elif not keeps_partial:
                group.task.cancel()

    async def close(self) -> None:
        """Ends everything. Groups that were not taken are gone. Twice is harmless."""
        self.abort(keeps_partial=False)
        tasks = [group.task for group in self._running.values() if group.task is not None]
        await asyncio.gather(self._feeder, *tasks, *self._aborting, return_exceptions=True)
        await self._connections.close()

    # Submitting.

    async def _feed(self) -> None:
        try:
            while True:
                await self._room.acquire()
                await self._permits.acquire()
                # Nothing waits from here on: a prompt that was taken is submitted.
                if self._is_aborted.is_set() or (prompt := next(self._prompts, _END)) is _END:
                    return
                self._submit(prompt)
        except Exception as error:
            self._failure = error
            self.abort(keeps_partial=False)
        finally:
            self._news.set()

    def _submit(self, prompt: Any) -> None:
        index = self.ledger.submit(prompt)
        group = self._running[index] = _RunningGroup()
        group.task = asyncio.create_task(self._run(index, prompt, group))
        group.task.add_done_callback(lambda task: self._end(index, prompt, task))

    def _end(self, index: int, prompt: Any, task: asyncio.Task[RolloutGroup]) -> None:
        """Takes the end of a group's task, which comes once, however it ends."""
        del self._running[index]
        self._permits.release()
        if task.cancelled():
            self._lose(index, ABORTED)
        elif (error := task.exception()) is None:
            group = task.result()
            self.ledger.end(index, GroupState.COMPLETE if group.is_complete else GroupState.PARTIAL)
            self._ready.append(group)
        else:
            self._lose(index, str(error) if isinstance(error, GroupLost) else f"{type(error).__name__}: {error}")
        self._news.set()

    def _lose(self, index: int, reason: str) -> None:
        self.ledger.end(index, GroupState.LOST, reason)
        self._room.release()

    # One group.

    async def _run(self, index: int, prompt: Any, group: _RunningGroup) -> RolloutGroup:
        """Asks for the answers to a prompt. Raises GroupLost if there are none."""
        requests = self._maker.requests(index, prompt)
        until = asyncio.get_running_loop().time() + self._limits.timeout
        if len(requests) == 1:
            return self._group(index, prompt, [await self._ask(requests[0], group, until)])
        results = await asyncio.gather(
            *(self._ask(request, group, until) for request in requests), return_exceptions=True
        )
        replies = [result for result in results if isinstance(result, _RequestReply)]
        if not replies:
            raise next(result for result in results if isinstance(result, BaseException))
        return self._group(index, prompt, replies)

    def _group(self, index: int, prompt: Any, replies: list[_RequestReply]) -> RolloutGroup:
        try:
            answers = tuple(answer for reply in replies for answer in read_answers(reply.members["choices"]))
            usages = [reply.members.get("usage") or {} for reply in replies]
            return RolloutGroup(
                index=index,
                prompt=prompt,
                answers=answers,
                is_complete=len(answers) >= self._maker.n and all(answer.is_complete for answer in answers),
                n_attempts=sum(reply.n_attempts for reply in replies),
                prompt_tokens=max(int(usage.get("prompt_tokens") or 0) for usage in usages),
                completion_tokens=sum(int(usage.get("completion_tokens") or 0) for usage in usages),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GroupLost(f"the answer is no completion: {type(error).__name__}: {error}") from None

    async def _ask(self, request: GroupRequest, group: _RunningGroup, expires: float) -> _RequestReply:
        """Asks until there is an answer. Raises GroupLost."""
        n_attempts = n_failures = 0
        loop = asyncio.get_running_loop()
        while True:
            n_attempts += 1
            try:
                return _RequestReply(await self._attempt(request, group, expires - loop.time()), n_attempts)
            except AttemptFailed as failure:
                n_failures += failure.pause is None
                pause = self._rule.pause(failure, n_failures, expires - loop.time(), random.random())
                if pause is None or self._is_aborted.is_set():
                    raise GroupLost(failure.reason) from None
                await self._pause(pause)
                self.ledger.count_retry(failure.reason)

    async def _attempt(self, request: GroupRequest, group: _RunningGroup, left: float) -> dict[str, Any]:
        """Asks once, and returns the answer's members. Raises AttemptFailed."""
        if self._is_aborted.is_set():
            raise GroupLost(ABORTED)
        group.sent.add(request.group)
        try:
            asking = self._connections.ask("POST", request.path, request.headers, request.body)
            reply = await asyncio.wait_for(asking, max(left, 0.001))
        except ConnectionBroken as broken:
            raise AttemptFailed(str(broken), may_repeat=True) from None
        except asyncio.TimeoutError:
            raise AttemptFailed(f"no answer within {self._limits.timeout:g} s", may_repeat=False) from None
        finally:
            group.sent.discard(request.group)
        return _members(reply)

    async def _pause(self, seconds: float) -> None:
        """Waits before another try. Raises GroupLost if the rollout is aborted meanwhile."""
        try:
            await asyncio.wait_for(self._is_aborted.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise GroupLost(ABORTED)

    # Aborting.

    def _spawn_abort(self, group: _RunningGroup) -> None:
        task = asyncio.create_task(self._abort(group))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort(self, group: _RunningGroup) -> None:
        """Aborts a group at the server and keeps its partial answers; gives it up after `grace` s without them."""
        assert group.task is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.grace
        unknown = set(group.sent)
        while unknown and not group.task.done() and loop.time() < until:
            for name in tuple(unknown & group.sent):
                if await self._abort_at_server(name, until - loop.time()):
                    unknown.discard(name)
            unknown &= group.sent
            await asyncio.wait({group.task}, timeout=_ABORT_INTERVAL)
        await asyncio.wait({group.task}, timeout=max(until - loop.time(), 0))
        group.task.cancel()

    async def _abort_at_server(self, name: str, left: float) -> bool:
        """Returns whether the server knows the group, and ends it."""
        asking = self._connections.ask("DELETE", f"/v1/groups/{quote(name)}?partial=true", {})
        try:
            return (await asyncio.wait_for(asking, max(left, 0.001))).status == 200
        except (ConnectionBroken, asyncio.TimeoutError):
            return False


def _members(reply: HttpReply) -> dict[str, Any]:
    """Returns the members of an answer. Raises AttemptFailed for an error, and for what is no object."""
    try:
        members = json.loads(reply.body)
    except ValueError:
        members = None
    if reply.status != 200:
        raise failed_answer(reply.status, reply.headers.get("retry-after", ""), _message(members))
    if not isinstance(members, dict):
        raise AttemptFailed("the answer is no JSON object", may_repeat=False)
    return members


def _message(members: Any) -> str:
    error = members.get("error") if isinstance(members, dict) else None
    words = error.get("message") if isinstance(error, dict) else error
    return str(words)[:200] if words else ""
