"""The accounts of all API keys that are let in, their file, and their usage at /v1/usage and /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import gevent
import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import KeyNotCounted, SettingsError, Unauthorized
from corosrv.base.waits import call_in_thread, own_hub
from corosrv.contracts.settings import KeyEntry, read_keys, signature_of
from corosrv.web.key_account import ENTERED, Clocks, KeyAccount, UsageCounts
from corosrv.web.keys import digest

if TYPE_CHECKING:  # a server without Redis needs none of it
    from corosrv.fleet.cluster.key_limits import KeyLimits

log = logging.getLogger("corosrv.http")

_PATIENCE = 1.0  # seconds for which requests wait while the file is read; then the keys count that were there
_MOST_SHOWN = 1000  # keys with metrics of their own


class Accounts:
    """The accounts of all keys that are let in: those of the file, and those without limits.

    Each request looks whether the file has changed, so that all processes of a server, and all servers that have the
    file, know a key from the same moment on.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        path: str = "",
        check: Callable[[Sequence[KeyEntry]], None] = lambda entries: None,
        clocks: Clocks | None = None,
    ) -> None:
        """`keys`: those without limits, named key-1 and so on. `path`: of the file, which is read; none: "".

        `check`: raises SettingsError for entries that this server cannot serve. Raises SettingsError.
        """
        self._path = path
        self._check = check
        self._clocks = clocks or Clocks()
        self._plain: dict[str, KeyAccount] = {}
        for key in keys:
            caller = digest(key.encode("utf-8", "surrogateescape")).hex()
            entry = KeyEntry(name=f"key-{len(self._plain) + 1}", hash=caller)
            self._plain.setdefault(caller, KeyAccount(entry, self._clocks))
        self.are_needed = bool(path or self._plain)  # requests need a key
        self._by_caller = dict(self._plain)
        self._signature: object = None
        self._reading: gevent.Greenlet | None = None
        self._shown: dict[str, None] = {}  # names with metrics of their own, in the order of their first use
        self._limits: KeyLimits | None = None
        self.since = self._clocks.wall()
        if path:
            self._signature = signature_of(path)
            self._take(read_keys(path))

    def share(self, limits: KeyLimits) -> None:
        """Shares the limits of all keys with other servers, also of those that come."""
        self._limits = limits
        for account in self._by_caller.values():
            account.share(limits)

    def find(self, key: bytes) -> tuple[str, KeyAccount | None]:
        """Returns a name for the caller, made from its key, and its account; None for an unknown key.

        May wait while the file is read that has changed.
        """
        self._look()
        caller = digest(key).hex()
        return caller, self._by_caller.get(caller)

    def account_of(self, caller: str) -> KeyAccount | None:
        """Returns the account of a caller, whose name was made from a key; None where no keys are needed.

        May wait as find() does. Raises Unauthorized where the key is not let in, or no longer.
        """
        self._look()
        account = self._by_caller.get(caller)
        if self.are_needed and (account is None or account.is_expired):
            raise Unauthorized("this API key is not known here, or has expired")
        return account

    def passed_on(self, caller: str, counts_answers: bool) -> KeyAccount | None:
        """Returns the account of a caller whose request a peer has counted, and passes on; None where nobody needs a
        key. `counts_answers`: the peer's file has limits for it that have to be kept here.

        May wait as find() does. Raises KeyNotCounted where these limits cannot be kept.
        """
        self._look()
        account = self._by_caller.get(caller)
        if account is not None and not account.is_expired:
            return account
        if counts_answers:
            raise KeyNotCounted
        return KeyAccount(KeyEntry(name="peer", hash=caller), self._clocks) if caller and self.are_needed else None

    def enter(self, caller: str) -> KeyAccount | None:
        """Returns the account of a caller as account_of() does, and makes it that of all that this greenlet does."""
        account = self.account_of(caller)
        ENTERED.set(account)
        return account

    def has_limits(self, caller: str) -> bool:
        """Tells whether something is counted for a caller's key before it is served. May wait as find() does."""
        self._look()
        account = self._by_caller.get(caller)
        return account is not None and account.entry.has_limits

    def all(self) -> Collection[KeyAccount]:
        return self._by_caller.values()

    def _look(self) -> None:
        """Reads the file if it has changed, in another greenlet, and waits for it, whoever has begun that."""
        if not self._path:
            return
        if self._reading is None and signature_of(self._path) != self._signature:
            if own_hub() is None:
                return self._read()
            # In a greenlet of its own: a request that is given up must not take the new keys along.
            self._reading = gevent.spawn(self._read)
        if self._reading is not None:
            self._reading.join(_PATIENCE)

    def _read(self) -> None:
        """Reads the file, again where it has changed meanwhile. What cannot be read changes nothing: the log says why.

        May wait.
        """
        try:
            while (signature := signature_of(self._path)) != self._signature:
                self._signature = signature
                self._read_once(signature)
        finally:
            self._reading = None

    def _read_once(self, signature: object) -> None:
        try:
            if isinstance(signature, str):
                raise SettingsError(f"the file of keys {self._path} cannot be read: {signature}")
            entries = call_in_thread(read_keys, self._path)
            self._take(entries)
            log.info("the API keys were read again: %s has %d", self._path, len(entries))
        except SettingsError as error:
            log.error("the API keys stay as they were: %s", error)

    def _take(self, entries: Sequence[KeyEntry]) -> None:
        """Replaces the keys of the file; those that stay keep what they have used. Raises SettingsError."""
        self._check(entries)
        names = {account.entry.name for account in self._plain.values()}
        for entry in entries:
            if entry.hash in self._plain or entry.name in names:
                raise SettingsError(
                    f"{self._path}: the key '{entry.name}' is one of --api-key as well, or has its name"
                )
        by_caller = dict(self._plain)
        for entry in entries:
            account = self._by_caller.get(entry.hash)
            if account is None:
                account = KeyAccount(entry, self._clocks)
            elif account.entry != entry:
                account.change(entry)
            if self._limits is not None:
                account.share(self._limits)
            by_caller[entry.hash] = account
        self._by_caller = by_caller

    def by_name(self) -> Iterator[tuple[str, Sequence[KeyAccount]]]:
        """Yields the names that metrics have, each with the accounts that are counted under it.

        They are the keys of the file that were used first, as many as may be shown; the others stand together under no
        name, so that nothing that counts ever falls.
        """
        others = []
        for caller, account in self._by_caller.items():
            if caller in self._plain or not (account.total.requests or account.total.refused):
                continue
            name = account.entry.name
            if name in self._shown or len(self._shown) < _MOST_SHOWN:
                self._shown[name] = None
                yield name, (account,)
            else:
                others.append(account)
        if others:
            yield "", others


_METRICS: tuple[tuple[str, str, Callable[[UsageCounts], float]], ...] = (
    ("requests", "Requests by API key that asked for work", lambda counts: counts.requests),
    ("refused", "Requests by API key that were over a limit", lambda counts: counts.refused),
    ("prompt_tokens", "Tokens of prompts by API key", lambda counts: counts.prompt_tokens),
    ("cached_tokens", "Tokens of prompts by API key that were not computed again", lambda counts: counts.cached_tokens),
    ("generated_tokens", "Generated tokens by API key", lambda counts: counts.generated_tokens),
    ("compute_seconds", "Seconds of the machine by API key", lambda counts: counts.compute_ms / 1000),
)


class UsageCollector(Collector):
    """Reads the usage of the keys of the file at each scrape, by their names."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        rows = [(name, [account.total for account in accounts]) for name, accounts in self._accounts.by_name()]
        for metric, words, read in _METRICS:
            family = CounterMetricFamily(f"corosrv_key_{metric}", words, labels=["key"])
            for name, counts in rows:
                family.add_metric([name], sum(map(read, counts)))
            yield family


class Used(msgspec.Struct):
    """The counts of a period, as GET /v1/usage shows them."""

    requests: int
    refused_requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    compute_ms: float


class UsedOnDay(Used):
    """The counts of one day, in UTC."""

    date: str


class KeyUsage(msgspec.Struct):
    """A key, its limits, and what it has used."""

    object: Literal["usage"]
    key: str
    total: Used
    today: UsedOnDay
    limits: dict[str, int]
    models: list[str] | None
    tier: int
    weight: float


class UsageList(msgspec.Struct):
    """The answer of GET /v1/usage; `since` is Unix time."""

    object: Literal["list"]
    since: int
    data: list[KeyUsage]


def add_usage(views: Iterable[dict[str, Any]], more: Iterable[dict[str, Any]]) -> None:
    """Adds what other worker processes tell of the same keys to the usage in `views`, which KeyAccount.view made."""
    by_key = {view["key"]: view for view in views}
    for other in more:
        if (view := by_key.get(other["key"])) is None:
            continue  # a key that one process has read of already, and the other has not
        periods = ["total"] if other["today"]["date"] != view["today"]["date"] else ["total", "today"]
        for period in periods:
            counts = view[period]
            counts |= {name: counts[name] + n for name, n in other[period].items() if name != "date"}
