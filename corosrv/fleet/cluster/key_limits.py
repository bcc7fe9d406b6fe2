"""Shares the limits of API keys among all servers of one Redis: requests, tokens, and answers at once.

One script charges a key, gives back and answers. A server tells its totals and never differences, so that a run that is
lost or repeated does no harm; one run of a key is on its way at a time, and takes along whatever was asked meanwhile.
While Redis is away, late or wrong, each server decides by what it knew last, and tells later what it took.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import gevent
import msgspec
from gevent.event import Event

from corosrv.base.errors import CorosrvError, RedisRefused, RedisUnavailable
from corosrv.fleet.cluster.connection import RedisClient, Word
from corosrv.fleet.cluster.namespace import BEAT, CHARGE, LEASE_MS, KeyNames

log = logging.getLogger("corosrv.cluster")

PATIENCE = 0.25  # seconds that a request waits for Redis
GATHERING = 0.05  # seconds in which what is given back gathers
RETRY_PAUSE = 0.2  # seconds after what could not be told
MOST_AT_ONCE = 100  # keys in one round trip


class LimitReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the script: what all servers have used of a key's limits, and which asks were granted."""

    now_ms: float
    requests: float
    tokens: float
    day_tokens: float
    day: int
    streams: int  # of other servers
    grants: list[int]
    epoch: float


_replies = msgspec.msgpack.Decoder(LimitReply)


@dataclass(slots=True)
class UsedLimits:
    """The usage of a key's limits: requests, tokens, and those of one day."""

    requests: float = 0
    tokens: float = 0
    day_tokens: float = 0


class LimitedKey(Protocol):
    """The account of a key, as far as its limits are shared."""

    def limits(self) -> tuple[int, int, int, int]:
        """Returns requests and tokens a minute, tokens a day, and answers at once; -1: no limit."""

    def used(self) -> tuple[float, float, float]:
        """Returns what it believes all servers have used by now: requests, tokens, tokens of the day.

        Where a day has begun meanwhile, it tells the share before.
        """

    def follow(self, now_ms: float) -> None:
        """Sets the clock of Redis as the one by which a day begins; where one has, it tells the share."""

    def see(self, requests: float, tokens: float, day_tokens: float, streams: int, lifetime: float) -> None:
        """Sets what all servers have used, and the answers that others make, which hold for `lifetime` seconds."""


@dataclass(slots=True, eq=False)
class LimitAsk:
    """One request's wish, and whether it was granted: None where this server has to decide itself."""

    words: tuple[int, int, int, int]  # requests, tokens of the prompt, tokens of the answer, answers
    is_granted: bool | None = None
    is_given_up: bool = False
    answered: Event = field(default_factory=Event)

    def answer(self, is_granted: bool | None) -> None:
        self.is_granted = is_granted
        self.answered.set()


class KeyShare:
    """The usage of one key's limits by this server, in all. Belongs to the hub's thread."""

    __slots__ = (
        "_limits", "account", "asks", "counted", "day", "epoch", "is_busy", "key", "n_runs", "running", "total"
    )  # fmt: skip

    def __init__(self, limits: KeyLimits, key: str, account: LimitedKey) -> None:
        self._limits = limits
        self.key = key
        self.account = account
        self.total = UsedLimits()
        self.counted = UsedLimits()  # of the total, what Redis has confirmed
        self.day = -1  # of the tokens of a day
        self.epoch = 0.0  # of what Redis knows
        self.running = 0  # answers
        self.asks: list[LimitAsk] = []
        self.is_busy = False  # a run is on its way
        self.n_runs = 0

    def ask(self, requests: int = 0, prompt: int = 0, answer: int = 0, streams: int = 0) -> bool | None:
        """Charges what is asked if all servers together have left that much; returns whether they had.

        Waits, for PATIENCE at most. None: Redis does not say, and nothing was taken.
        """
        return self._limits.ask(self, LimitAsk((requests, prompt, answer, streams)))

    def add(self, requests: float = 0, tokens: float = 0, day_tokens: float = 0, running: int = 0) -> None:
        """Adds what this server has taken without asking, or gives back where it is negative. Never waits."""
        if requests or tokens or day_tokens or running:
            self._count(requests, tokens, day_tokens, running)
            self._limits.tell(self)

    def _count(self, requests: float, tokens: float, day_tokens: float, running: int) -> None:
        self.total.requests += requests
        self.total.tokens += tokens
        self.total.day_tokens += day_tokens
        self.running += running

    def begin_day(self, day: int) -> None:
        """Begins a day, of which nothing was used."""
        self.day = day
        self.total.day_tokens = self.counted.day_tokens = 0

    def words(self, asks: Sequence[LimitAsk]) -> bytes:
        """Writes what the script is told."""
        used = self.account.used()
        total, counted = self.total, self.counted
        return msgspec.msgpack.encode((
            self.account.limits(),
            (total.requests, total.tokens, total.day_tokens, self.day, self.running),
            (counted.requests, counted.tokens, counted.day_tokens),
            [max(n, 0) for n in used],
            [ask.words for ask in asks],
            self.epoch,
        ))  # fmt: skip

    def take(self, before: UsedLimits, day: int, asks: Sequence[LimitAsk], reply: LimitReply) -> None:
        """Applies the reply to a run; `before`: the total that it told, and the day. Raises ValueError."""
        answers = [(ask, bool(grant)) for ask, grant in zip(asks, reply.grants, strict=True)]
        self.account.follow(reply.now_ms)
        granted = [ask.words for ask, is_granted in answers if is_granted]
        requests = sum(words[0] for words in granted)
        tokens = sum(words[1] + words[2] for words in granted)
        of_day = before.day_tokens if day == reply.day else 0
        total, counted = self.total, UsedLimits(before.requests + requests, before.tokens + tokens, of_day + tokens)
        self.counted, self.epoch = counted, reply.epoch
        self._count(requests, tokens, tokens, sum(words[3] for words in granted))
        for ask, is_granted in answers:
            if ask.is_given_up and is_granted:
                n_tokens = ask.words[1] + ask.words[2]
                self.add(-ask.words[0], -n_tokens, -n_tokens, -ask.words[3])
        self.account.see(
            reply.requests + total.requests - counted.requests,
            reply.tokens + total.tokens - counted.tokens,
            total.day_tokens - (counted.day_tokens - reply.day_tokens if reply.day == self.day else 0),
            reply.streams,
            LEASE_MS / 1000,
        )
        for ask, is_granted in answers:
            ask.answer(is_granted)


class KeyLimits:
    """Asks and tells Redis for all keys of one server. Belongs to the hub's thread."""

    def __init__(self, client: RedisClient, names: KeyNames, server: str) -> None:
        self._client = client
        self._names = names
        self._server = server
        self._script = client.script(CHARGE)
        self._due: dict[KeyShare, None] = {}
        self._running: dict[KeyShare, None] = {}  # those with answers, which beats keep
        self._late: set[KeyShare] = set()  # those whose run takes too long
        self._wrong: set[KeyShare] = set()  # those whose last run was refused, or answered with what is no answer
        self._is_on = False
        self._is_alone = False  # Redis is away, which was logged
        self._beats_at = 0.0
        self._news = Event()
        self._greenlet: gevent.Greenlet | None = None
        client.health.on_change(self._on_link)

    def share(self, key_hash: str, account: LimitedKey) -> KeyShare:
        """Makes the share of one key; `key_hash`: the same in all servers. Redis learns a hash of that alone."""
        name = hashlib.blake2b(key_hash.encode(), digest_size=20).hexdigest()
        return KeyShare(self, self._names.name("limits", name), account)

    def start(self) -> None:
        """Begins to share."""
        self._is_on = True
        self._greenlet = gevent.spawn(self._tell_all)

    def close(self) -> None:
        """Tells what was not told yet, if Redis answers. Twice is harmless."""
        if self._greenlet is None:
            return
        self._greenlet.kill(block=False)
        self._greenlet = None
        self._is_on = False
        if self._client.health.is_up:
            self._run_all(self._due)

    def ask(self, share: KeyShare, ask: LimitAsk) -> bool | None:
        """Asks Redis for a key; see KeyShare.ask."""
        if not self._is_on or self._late or not self._client.health.is_up:
            return None
        share.asks.append(ask)
        self._begin(share)
        try:
            if not ask.answered.wait(PATIENCE) and share.is_busy:
                self._late.add(share)
        finally:  # also of a request whose client has left
            ask.is_given_up = not ask.answered.is_set()
        return ask.is_granted

    def tell(self, share: KeyShare) -> None:
        """Tells Redis soon what a key has used here. Never waits."""
        self._due[share] = None
        if share.running > 0:
            self._running[share] = None
        else:
            self._running.pop(share, None)
        self._news.set()

    def _on_link(self, is_up: bool) -> None:
        if is_up:
            self._beats_at = 0.0  # it may have forgotten whose answers run
            self._news.set()
        elif self._is_on and not self._is_alone:
            self._is_alone = True
            log.warning("limits of API keys are kept by each server for itself while Redis is away")

    # Runs of one key, one after another.

    def _begin(self, share: KeyShare) -> None:
        if not share.is_busy:
            share.is_busy = True
            gevent.spawn(self._serve, share)  # a request that is given up must not take other requests' run along

    def _serve(self, share: KeyShare) -> None:
        """Runs the script for a key while something is asked."""
        try:
            while share.asks:
                self._run([share])
        finally:
            self._end(share)

    def _end(self, share: KeyShare) -> None:
        share.is_busy = False
        self._late.discard(share)
        if share.asks:
            self._begin(share)
        elif share in self._due:
            self._news.set()

    def _run(self, shares: Sequence[KeyShare]) -> None:
        """Runs the script for keys, each with all that is asked of it, in one round trip. Raises nothing. Waits."""
        calls: list[tuple[Sequence[str], Sequence[Word]]] = []
        runs: list[tuple[KeyShare, UsedLimits, int, list[LimitAsk]]] = []
        try:
            for share in shares:
                asks, share.asks = share.asks, []
                share.n_runs += 1
                self._due.pop(share, None)
                calls.append(([share.key], (self._server, share.n_runs, LEASE_MS, share.words(asks))))
                total = share.total
                runs.append((share, UsedLimits(total.requests, total.tokens, total.day_tokens), share.day, asks))
            for (share, used, day, asks), reply in zip(runs, self._script.run_all(calls), strict=True):
                self._take(share, used, day, asks, reply)
        except CorosrvError as error:
            log.debug("limits of API keys could not be shared: %s", error)
            for share in shares:
                self.tell(share)
        except Exception:
            log.exception("limits of API keys could not be shared, by a bug")
        finally:
            for ask in (ask for _, _, _, asks in runs for ask in asks if not ask.answered.is_set()):
                ask.answer(None)

    def _take(self, share: KeyShare, before: UsedLimits, day: int, asks: Sequence[LimitAsk], reply: object) -> None:
        """Applies the reply of Redis for one key. A wrong one is logged, and leaves the decision to this server."""
        try:
            if isinstance(reply, RedisRefused):
                raise reply
            if not isinstance(reply, bytes):
                raise RedisUnavailable(f"it answered {reply!r:.80}")
            share.take(before, day, asks, _replies.decode(reply))
        except (RedisRefused, RedisUnavailable, msgspec.MsgspecError, ValueError) as error:
            if not self._wrong:
                log.warning("limits of an API key are kept by each server for itself: %s", error)
            self._wrong.add(share)
            return
        self._wrong.discard(share)
        if share.running > 0:
            self._running[share] = None
        if self._is_alone:
            self._is_alone = False
            log.info("limits of API keys are shared again")

    # What is told without being asked.

    def _tell_all(self) -> None:
        while True:
            self._news.wait(max(self._beats_at - time.monotonic(), 0.0))
            gevent.sleep(GATHERING)
            self._news.clear()
            if not self._client.health.is_up:
                gevent.sleep(RETRY_PAUSE)
                continue
            due = dict(self._due)
            if time.monotonic() >= self._beats_at:
                self._beats_at = time.monotonic() + BEAT
                due |= self._running
            self._run_all(due)

    def _run_all(self, shares: Iterable[KeyShare]) -> None:
        idle = [share for share in shares if not share.is_busy]  # a run that is on its way is followed by another one
        for begin in range(0, len(idle), MOST_AT_ONCE):
            batch = idle[begin : begin + MOST_AT_ONCE]
            for share in batch:
                share.is_busy = True
            try:
                self._run(batch)
            finally:
                for share in batch:
                    self._end(share)
