"""The account of one API key: what it may do, what it has left, and what it has used.

A request is counted as it is let in, and a job's tokens twice: by an estimate before the job is queued, which is what a
key must have left, and by what was computed when the job has ended. Times are of the monotonic clock; the wall clock
decides alone when a day begins (in UTC), and when a key expires. Where several servers share the limits Redis decides,
by its own clock, and the account knows what Redis said last. Belongs to the hub's thread; where each request has a
thread of its own, requests at the very same moment may pass a limit together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from corosrv.base.errors import LimitReached
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.contracts.jobs.terms import Terms
from corosrv.contracts.settings import KeyEntry
from corosrv.web.rate_limits import Bucket, header_names, limit_headers

if TYPE_CHECKING:  # a server without Redis needs none of it
    from corosrv.fleet.cluster.key_limits import KeyLimits, KeyShare

# Of an answer whose request sets no limit: what is charged for it until its end, when it is known.
UNLIMITED_ANSWER = 256
_DAY = 86_400
COUNTED = ("POST", "PUT")  # methods that ask for work
_STREAM_ENDS = 1.0  # seconds after which a key whose answers all run may try again: nobody knows when one ends
_COMPUTED = (Finish.STOP, Finish.LENGTH)

# The account of whatever this greenlet does that is no HTTP request; see Accounts.enter.
ENTERED: ContextVar[KeyAccount | None] = ContextVar("corosrv_entered", default=None)


@dataclass(slots=True)
class UsageCounts:
    """Counts of what one key has used in a time."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts', those that did not have to be computed
    generated_tokens: int = 0
    compute_ms: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens

    def view(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "refused_requests": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "compute_ms": round(self.compute_ms, 3),
        }


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of accounts: seconds of a clock that nobody sets, and Unix time."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class KeyAccount:
    """The limits of one API key, what it has left, and what it has used; see corosrv.contracts.jobs.terms.Account."""

    __slots__ = (
        "_ahead", "_clocks", "_day", "_day_charge", "_elsewhere", "_elsewhere_until", "_n_running", "_requests",
        "_share", "_tokens", "entry", "today", "total"
    )  # fmt: skip

    def __init__(self, entry: KeyEntry, clocks: Clocks) -> None:
        self.entry = entry
        self._share: KeyShare | None = None  # where other servers have the key's limits, too
        self._ahead = 0.0  # seconds by which the clock of Redis is ahead of this machine's
        self._elsewhere = 0  # answers that other servers make
        self._elsewhere_until = 0.0  # when it is too old to be believed
        self.total = UsageCounts()
        self.today = UsageCounts()
        self._clocks = clocks
        self._day = -1
        self._day_charge = 0  # tokens
        self._n_running = 0
        now = clocks.monotonic()
        self._requests = _resized("requests", None, entry.requests_per_minute, now)
        self._tokens = _resized("tokens", None, entry.tokens_per_minute, now)

    def change(self, entry: KeyEntry) -> None:
        """Takes new limits over; what was used stays used."""
        now = self._clocks.monotonic()
        self.entry = entry
        self._requests = _resized("requests", self._requests, entry.requests_per_minute, now)
        self._tokens = _resized("tokens", self._tokens, entry.tokens_per_minute, now)

    def share(self, limits: KeyLimits) -> None:
        """Shares the limits with other servers from now on, if there are any. Twice is harmless."""
        if self._share is None and self.entry.has_limits:
            self._look_at_day()
            self._share = limits.share(self.entry.hash, self)
            self._share.day = self._day

    # For the share.

    def limits(self) -> tuple[int, int, int, int]:
        entry = self.entry
        limits = entry.requests_per_minute, entry.tokens_per_minute, entry.tokens_per_day, entry.streams
        return tuple(-1 if limit is None else limit for limit in limits)  # type: ignore[return-value]

    def used(self) -> tuple[float, float, float]:
        self._look_at_day()
        now = self._clocks.monotonic()
        requests, tokens = (
            0.0 if one is None else one.capacity - one.level(now) for one in (self._requests, self._tokens)
        )
        return requests, tokens, self._day_charge

    def follow(self, now_ms: float) -> None:
        self._ahead = now_ms / 1000 - self._clocks.wall()
        self._look_at_day()

    def see(self, requests: float, tokens: float, day_tokens: float, streams: int, lifetime: float) -> None:
        now = self._clocks.monotonic()
        for bucket, n in ((self._requests, requests), (self._tokens, tokens)):
            if bucket is not None:
                bucket.set_used(n, now)
        self._day_charge = int(day_tokens)
        self._elsewhere, self._elsewhere_until = streams, now + lifetime

    def _ask(self, requests: int = 0, prompt: int = 0, answer: int = 0, streams: int = 0) -> bool | None:
        """Charges the limits that servers share, as KeyShare.ask; returns None where none does. Waits."""
        return None if self._share is None else self._share.ask(requests, prompt, answer, streams)

    def _tell(self, requests: int = 0, tokens: int = 0, day_tokens: int = 0, running: int = 0) -> None:
        """Tells what was taken without being asked for, or given back. Never waits."""
        if self._share is not None:
            self._share.add(requests, tokens, day_tokens, running)

    @property
    def is_expired(self) -> bool:
        return self.entry.expires is not None and self._clocks.wall() >= self.entry.expires

    @property
    def counts_answers(self) -> bool:
        return self.entry.counts_answers

    def may_use(self, names: Iterable[str]) -> bool:
        """Tells whether the key may use the model that has these names."""
        models = self.entry.models
        return not models or any(name in models for name in names)

    def terms(self, terms: Terms) -> Terms:
        """Returns the terms with what the key adds."""
        return replace(terms, tier=self.entry.tier, weight=self.entry.weight, account=self)

    def admit(self, method: str) -> None:
        """Counts a request that asks for work: POST and PUT. May wait, where limits are shared. Raises LimitReached."""
        if method not in COUNTED:
            return
        self._look_at_day()
        if (bucket := self._requests) is not None:
            self._take_request(bucket)
        self.total.requests += 1
        self.today.requests += 1

    def _take_request(self, bucket: Bucket) -> None:
        # At least what is known here is used, as requests come back by time alone: a flood asks Redis nothing.
        wait = bucket.wait(1, self._clocks.monotonic())
        if not wait and self._ask(requests=1):
            return
        if wait := wait or bucket.wait(1, self._clocks.monotonic()):
            self._refuse(LimitReached(f"this API key may send {bucket.capacity} requests a minute", wait))
        bucket.take(1)
        self._tell(requests=1)

    def open_bill(self, n_tasks: int, n: int, max_tokens: int | None) -> KeyBill:
        self._look_at_day()
        # By its length a prompt is known when it has been read, which is work already.
        error = self._lack(1, 0, 1)
        if error is not None and self._ask() is not None:  # others may have given back what it has not heard of
            error = self._lack(1, 0, 1)
        if error is not None:
            self._refuse(error)
        self._n_running += 1
        return KeyBill(self, n, n_tasks * (UNLIMITED_ANSWER if max_tokens is None else max_tokens))

    def charge(self, prompt: int, answer: int) -> tuple[int, bool]:
        """Takes tokens of a prompt, and of its answer as estimated; returns the day, and whether others count the
        answer among those that are made at once. Waits where servers share the limits. Raises LimitReached.

        A full bucket takes every prompt that fits into it: the answer may be longer, and is paid for later.
        """
        self._look_at_day()
        counts, n_tokens = self._share is not None and self.counts_answers, prompt + answer
        if counts and self._ask(prompt=prompt, answer=answer, streams=1):
            return self._day, True
        if (error := self._lack(prompt, answer, 0)) is not None:
            self._refuse(error)
        if self._tokens is not None:
            self._tokens.take(n_tokens)
        self._day_charge += n_tokens
        if counts:
            self._tell(tokens=n_tokens, day_tokens=n_tokens, running=1)
        return self._day, counts

    def _lack(self, prompt: int, answer: int, streams: int) -> LimitReached | None:
        """Returns why the key may not make so many more answers, with these tokens; None if it may."""
        now = self._clocks.monotonic()
        elsewhere = self._elsewhere if now < self._elsewhere_until else 0
        if (most := self.entry.streams) is not None and self._n_running + elsewhere + streams > most:
            return LimitReached(f"this API key may have {most} answers made at once", _STREAM_ENDS)
        if (bucket := self._tokens) is not None:
            most = bucket.capacity
            if prompt > most:
                return LimitReached(f"the prompt has {prompt} tokens, and this API key may use {most} a minute", None)
            if wait := bucket.wait(min(prompt + answer, most), now):
                return LimitReached(f"this API key may use {most} tokens a minute{_needs(prompt, answer)}", wait)
        if (most := self.entry.tokens_per_day) is not None:
            if prompt > most:
                return LimitReached(f"the prompt has {prompt} tokens, and this API key may use {most} a day", None)
            if (left := most - self._day_charge) < min(prompt + answer, most):
                words = f"this API key may use {most} tokens a day, and has {max(left, 0)} left{_needs(prompt, answer)}"
                return LimitReached(words, self._until_tomorrow())
        return None

    def settle(self, bill: KeyBill) -> None:
        """Ends a job; what it was charged for and did not use is given back."""
        self._look_at_day()
        self._n_running -= 1
        n_used = bill.prompt_tokens + bill.generated_tokens
        if self._tokens is not None:
            self._tokens.take(n_used - bill.charged)
        of_day = n_used - (bill.charged if bill.day == self._day else 0)
        self._day_charge += of_day
        if self.counts_answers or bill.is_shared:
            self._tell(tokens=n_used - bill.charged, day_tokens=of_day, running=-int(bill.is_shared))
        for counts in (self.total, self.today):
            counts.prompt_tokens += bill.prompt_tokens
            counts.cached_tokens += bill.cached_tokens
            counts.generated_tokens += bill.generated_tokens
            counts.compute_ms += bill.compute_ms

    def _refuse(self, error: LimitReached) -> NoReturn:
        self.total.refused += 1
        self.today.refused += 1
        raise error

    def _look_at_day(self) -> None:
        now = self._clocks.wall() + self._ahead
        if not self._day * _DAY <= now < (self._day + 1) * _DAY:
            self._day = day = int(now // _DAY)
            self._day_charge = 0
            self.today = UsageCounts()
            if self._share is not None:
                self._share.begin_day(day)

    def _until_tomorrow(self) -> float:
        return max((self._day + 1) * _DAY - self._clocks.wall() - self._ahead, 1.0)

    def headers(self) -> list[tuple[str, str]]:
        """Returns the headers by which OpenAI's API tells what is left; `reset` is when nothing is used any more."""
        headers: list[tuple[str, str]] = []
        now = self._clocks.monotonic()
        if self._requests is not None:
            headers += self._requests.headers(now)
        if self._tokens is not None:
            headers += self._tokens.headers(now)
        elif (most := self.entry.tokens_per_day) is not None:
            headers += limit_headers(header_names("tokens"), most, most - self._day_charge, self._until_tomorrow())
        return headers

    def view(self) -> dict[str, Any]:
        """Describes the key and its usage, for GET /v1/usage."""
        self._look_at_day()
        entry = self.entry
        limits = {
            "streams": entry.streams,
            "requests_per_minute": entry.requests_per_minute,
            "tokens_per_minute": entry.tokens_per_minute,
            "tokens_per_day": entry.tokens_per_day,
        }
        return {
            "object": "usage",
            "key": entry.name,
            "total": self.total.view(),
            "today": {"date": time.strftime("%Y-%m-%d", time.gmtime(self._day * _DAY)), **self.today.view()},
            "limits": {name: limit for name, limit in limits.items() if limit is not None},
            "models": list(entry.models) or None,
            "tier": entry.tier,
            "weight": entry.weight,
        }


def _resized(subject: str, bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(subject, per_minute, now)
    bucket.resize(per_minute, now)
    return bucket


def _needs(prompt: int, answer: int) -> str:
    if not answer:
        return ""
    return f"; this request may need {prompt + answer}: {prompt} of its prompt, {answer} of its answer (max_tokens)"


class KeyBill:
    """The charge of one job, and what it uses; see corosrv.contracts.jobs.terms.Bill."""

    __slots__ = (
        "_account", "_answer", "_is_open", "_n", "_unread", "cached_tokens", "charged", "compute_ms", "day",
        "generated_tokens", "is_shared", "prompt_tokens"
    )  # fmt: skip

    def __init__(self, account: KeyAccount, n: int, answer: int) -> None:
        """`n`: answers to each prompt, which counts once; `answer`: tokens of all answers, as estimated."""
        self._account = account
        self._n = n
        self._answer = answer
        self._unread: list[int] = []  # tokens of each prompt, 0 once its end was read
        self._is_open = True
        self.is_shared = False  # other servers count the answer among those that are made at once
        self.charged = 0
        self.day = -1
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.compute_ms = 0.0

    def charge(self, prompt_tokens: Sequence[int]) -> None:
        prompts = list(prompt_tokens[:: self._n])
        n_tokens = sum(prompts)
        self.day, self.is_shared = self._account.charge(n_tokens, self._answer)
        self._unread = prompts
        self.charged = n_tokens + self._answer

    def add_end(self, chunk: Chunk) -> None:
        self.compute_ms += chunk.compute_ms
        prompt, answer = divmod(chunk.index, self._n)
        if answer:
            return
        if prompt < len(self._unread):
            self._unread[prompt] = 0
        if chunk.prompt_ms or chunk.finish in _COMPUTED:  # else it was cancelled before it began
            self.prompt_tokens += chunk.prompt_tokens
            self.cached_tokens += chunk.cached_tokens

    def drop(self) -> None:
        self._unread = []
        self.close(0)

    def close(self, generated_tokens: int, compute_ms: float = 0.0) -> None:
        if not self._is_open:
            return
        self._is_open = False
        # Nobody has read the end of these, so that what was computed of them is not known: it may be all.
        self.prompt_tokens += sum(self._unread)
        self.generated_tokens = generated_tokens
        self.compute_ms += compute_ms
        self._account.settle(self)
