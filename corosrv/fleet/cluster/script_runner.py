"""Runs the scripts of many greenlets in few round trips, on one connection."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.event import AsyncResult, Event

from corosrv.base.errors import CorosrvError, RedisRefused, RedisUnavailable
from corosrv.fleet.cluster.connection import RedisClient, Word

log = logging.getLogger("corosrv.cluster")

MAX_BATCH = 128  # scripts of one round trip
BATCH_BYTES = 4 << 20  # of their arguments, unless one alone has more

_NOTHING = "return 0"

Reply = Any  # bytes, int, None and lists of these; a RedisUnavailable or RedisRefused
OnReply = Callable[[Reply], object]


@dataclass(frozen=True, slots=True)
class _ScriptRun:
    text: str
    keys: Sequence[str]
    arguments: Sequence[Word]
    on_reply: OnReply
    n_bytes: int


def ignore(reply: Reply) -> None:
    """Takes a reply that nobody needs."""


class ScriptRunner:
    """Sends scripts in the order in which they came, all that have gathered at once. Belongs to one hub.

    Each is sent once: where Redis was lost meanwhile, it may have run. While Redis is known to be away, scripts fail at
    once, and otherwise within two time-outs of the client.
    """

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._runs: deque[_ScriptRun] = deque()
        self._news = Event()
        self._hashes: dict[str, str] = {}
        self._known: set[str] = set()  # texts that Redis knows, if it is still the same
        client.health.on_change(lambda is_up: self._known.clear())
        self._greenlet: gevent.Greenlet | None = None
        self.is_closed = False

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run_all)

    def flush(self, timeout: float) -> None:
        """Waits until everything was answered, `timeout` seconds at most."""
        if self._greenlet is not None:
            done = Event()
            self.submit(_NOTHING, (), (), lambda reply: done.set())
            done.wait(timeout)

    def close(self) -> None:
        """Fails what has not been sent, and what comes later. Twice is harmless."""
        self.is_closed = True
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None
        self._answer(list(self._runs), RedisUnavailable("the server is shutting down"))
        self._runs.clear()

    def submit(self, text: str, keys: Sequence[str], arguments: Sequence[Word], on_reply: OnReply = ignore) -> None:
        """Runs a script soon, and calls `on_reply`, which must not wait, with its reply or its error. Never waits."""
        if self.is_closed:
            on_reply(RedisUnavailable("the server is shutting down"))
            return
        n_bytes = sum(len(word) for word in arguments if isinstance(word, (str, bytes)))
        self._runs.append(_ScriptRun(text, keys, arguments, on_reply, n_bytes))
        self._news.set()

    def run(self, text: str, keys: Sequence[str], arguments: Sequence[Word]) -> Reply:
        """Runs a script and returns its reply. Waits. Raises RedisUnavailable and RedisRefused."""
        result: AsyncResult[Reply] = AsyncResult()
        self.submit(text, keys, arguments, result.set)
        reply = result.get()
        if isinstance(reply, CorosrvError):
            raise reply
        return reply

    def _run_all(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            while batch := self._take_batch():
                try:
                    replies: Sequence[Reply] = self._execute(batch)
                except CorosrvError as error:
                    self._answer(batch, error)
                except gevent.GreenletExit:
                    self._answer(batch, RedisUnavailable("the server is shutting down"))
                    raise
                except Exception:
                    log.exception("scripts of the shared queue failed by a bug")
                    self._answer(batch, RedisUnavailable("the shared queue failed"))
                else:
                    for run, reply in zip(batch, replies, strict=True):
                        _tell(run, reply)

    def _take_batch(self) -> list[_ScriptRun]:
        batch: list[_ScriptRun] = []
        n_bytes = 0
        while self._runs and len(batch) < MAX_BATCH and (not batch or n_bytes + self._runs[0].n_bytes <= BATCH_BYTES):
            run = self._runs.popleft()
            n_bytes += run.n_bytes
            batch.append(run)
        return batch

    def _execute(self, batch: Sequence[_ScriptRun]) -> list[Reply]:
        commands = []
        for run in batch:
            is_known = run.text in self._known
            self._known.add(run.text)
            commands.append(
                self._command(run, *(("EVALSHA", self._hash(run.text)) if is_known else ("EVAL", run.text)))
            )
        replies = self._client.execute_all(commands)
        unknown = [
            place for place, reply in enumerate(replies) if isinstance(reply, RedisRefused) and reply.word == "NOSCRIPT"
        ]
        if unknown:  # they have not run
            again = self._client.execute_all(
                [self._command(batch[place], "EVAL", batch[place].text) for place in unknown]
            )
            for place, reply in zip(unknown, again, strict=True):
                replies[place] = reply
        return replies

    def _command(self, run: _ScriptRun, *words: Word) -> Sequence[Word]:
        return (*words, len(run.keys), *run.keys, *run.arguments)

    def _hash(self, text: str) -> str:
        if text not in self._hashes:
            self._hashes[text] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return self._hashes[text]

    def _answer(self, runs: Sequence[_ScriptRun], error: CorosrvError) -> None:
        for run in runs:
            _tell(run, error.fresh())


def _tell(run: _ScriptRun, reply: Reply) -> None:
    try:
        run.on_reply(reply)
    except Exception:
        log.exception("a reply of the shared queue could not be taken")
