"""Accounts of the seconds for which callers' calls have held permits, by which it is decided whose call is next."""

from __future__ import annotations

import heapq
import itertools

MAX_IDLE = 10_000  # callers without calls that are remembered
SETTLE_AFTER = 0.1  # seconds after which those whose calls run are charged once more


class CallerAccount:
    """Holds what one caller has had. Its ledger alone changes it."""

    __slots__ = (
        "caller", "is_listed", "n_calls", "n_running", "n_waiting", "permits", "settled_at", "tier", "virtual_s",
        "weight",
    )  # fmt: skip

    def __init__(self, caller: str = "") -> None:
        self.caller = caller
        self.tier = 0
        self.weight = 1.0
        self.virtual_s = 0.0  # seconds of a permit that it was charged for, by its weight
        self.n_calls = 0  # that have not ended
        self.n_waiting = 0  # of them, for a permit
        self.n_running = 0  # of hand-overs, some of which may go on although their calls have ended
        self.permits = 0.0  # that it holds: of a batch, each call holds its part of one
        self.settled_at = 0.0  # until when it was charged for them
        self.is_listed = False  # among those of its tier

    @property
    def is_idle(self) -> bool:
        return not (self.n_calls or self.n_running)


class Ledger:
    """Charges callers for the seconds for which their calls hold permits. The time is passed in.

    Of those of one tier the next one is whoever has had least, by its weight, as in the decode loop (OwnerLedger). So
    callers that always have calls waiting get shares as large as their weights. One that begins to wait is lifted to
    the least of those that do: what it did not ask for is not saved up for it. Nor is it for others by one that never
    waits, as its few calls always run: it is none of those that are compared. Where nobody waits, nobody has taken
    anything from others, and it has the most that one was charged for. A caller without calls is
    forgotten when that changes nothing, or MAX_IDLE others are remembered.

    One ledger is for all keys that share permits, through whatever workers: there a caller's calls of one handler take
    from others what their calls of another one need. Keys that share none have ledgers of their own, for there nobody
    waits for what others have had elsewhere, however much it was.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, CallerAccount] = {}
        self._running: dict[CallerAccount, None] = {}
        # By tier, the accounts by what they had when they were last looked at, or less, so that the first is found.
        self._heaps: dict[int, list[tuple[float, int, CallerAccount]]] = {}
        self._numbers = itertools.count()
        self._most_s = 0.0  # that a caller has had
        self._looks_from = MAX_IDLE  # accounts at which idle ones are counted
        self._settles_at = 0.0

    def __len__(self) -> int:
        """Returns the number of callers that are remembered."""
        return len(self._accounts)

    def join(self, caller: str, tier: int = 0, weight: float = 1.0) -> CallerAccount:
        """Counts a call of a caller, which waits, until `leave`. Tier and weight of the last one hold for all."""
        account = self._accounts.get(caller)
        # One that is alone may begin anywhere, and stays listed.
        if (
            account is None
            or account.tier != tier
            or not (account.n_waiting or (account.is_listed and len(self._accounts) == 1))
        ):
            account = self._enter(caller, tier)
        account.n_calls += 1
        account.n_waiting += 1
        account.weight = weight
        return account

    def wait_again(self, account: CallerAccount) -> None:
        """Records that a call waits which had been started."""
        if not account.n_waiting and self._accounts.get(account.caller) is account:
            self._enter(account.caller, account.tier)
        account.n_waiting += 1

    def leave(self, account: CallerAccount, waits: bool) -> None:
        """Records that a call has ended. `waits`: it never got its permit; else it may be that it is still held."""
        account.n_calls -= 1
        account.n_waiting -= waits

    def start(self, account: CallerAccount, permits: float, now: float) -> None:
        """Records that a call that waited holds a permit from now on, or its part of one."""
        account.n_waiting -= 1
        if account.n_running:
            self._charge(account, now)
            account.permits += permits
        else:
            account.permits = permits
            account.settled_at = now
            self._running[account] = None
        account.n_running += 1

    def stop(self, account: CallerAccount, permits: float, now: float) -> None:
        """Charges a caller for what it holds, of which it holds this no longer."""
        self._charge(account, now)
        account.permits -= permits
        account.n_running -= 1
        if not account.n_running:
            account.permits = 0.0
            del self._running[account]
            if not account.is_listed:  # it is to be found when it can be forgotten
                self._list(account)

    def settle(self, now: float) -> None:
        """Charges all whose calls run, if that is some time ago: so that long calls count before they end."""
        if now >= self._settles_at and self._running:
            self._settles_at = now + SETTLE_AFTER
            for account in self._running:
                self._charge(account, now)

    def absorb(self, other: Ledger) -> None:
        """Takes the accounts of another ledger, whose keys share permits with those of this one from now on.

        The least of both are made equal. A caller that has calls in both has two accounts until the second is idle.
        """
        shift = self._least(0) - other._least(0)
        for account in dict.fromkeys((*other._accounts.values(), *other._running)):
            account.virtual_s += shift
            if account.caller not in self._accounts:
                self._accounts[account.caller] = account
                self._list(account)
        self._running.update(other._running)
        self._most_s = max(self._most_s, other._most_s + shift)

    def _charge(self, account: CallerAccount, now: float) -> None:
        account.virtual_s += account.permits * (now - account.settled_at) / account.weight
        account.settled_at = now
        if account.virtual_s > self._most_s:
            self._most_s = account.virtual_s

    def _enter(self, caller: str, tier: int) -> CallerAccount:
        """Records that a caller begins to wait, or has another tier from now on."""
        least = self._least(tier)
        account = self._accounts.get(caller)
        if account is None:
            if len(self._accounts) >= self._looks_from:
                self._forget_idle()
            account = self._accounts[caller] = CallerAccount(caller)
        if account.tier == tier and account.virtual_s >= least:
            least = account.virtual_s
        if account.tier != tier or not account.is_listed:
            account.tier, account.virtual_s = tier, least
            self._list(account)
        account.virtual_s = least
        return account

    def _least(self, tier: int) -> float:
        """Returns what a caller of a tier begins with.

        Where a tier has nobody, the others say how late it is: what has waited there for very long comes among those of
        a better tier, and is compared to them.
        """
        if (first := self._first(tier)) is not None:
            return first.virtual_s
        firsts = [first for other in list(self._heaps) if (first := self._first(other)) is not None]
        return min((first.virtual_s for first in firsts), default=self._most_s)

    def _first(self, tier: int) -> CallerAccount | None:
        """Returns the one that has had least of those of a tier that wait. Forgets idle ones that have had no more."""
        heap = self._heaps.get(tier)
        while heap:
            virtual_s, number, account = heap[0]
            if account.tier != tier or self._accounts.get(account.caller) is not account:
                heapq.heappop(heap)
            elif virtual_s != account.virtual_s:
                heapq.heapreplace(heap, (account.virtual_s, number, account))
            elif account.n_waiting:
                return account
            else:
                heapq.heappop(heap)
                account.is_listed = False
                if account.is_idle:
                    del self._accounts[account.caller]
        return None

    def _list(self, account: CallerAccount) -> None:
        account.is_listed = True
        heapq.heappush(self._heaps.setdefault(account.tier, []), (account.virtual_s, next(self._numbers), account))

    def _forget_idle(self) -> None:
        """Forgets those without calls that have had least, where there are too many."""
        idle = sorted((other for other in self._accounts.values() if other.is_idle), key=lambda other: other.virtual_s)
        for account in idle[: -MAX_IDLE // 2]:
            del self._accounts[account.caller]
        self._looks_from = len(self._accounts) + MAX_IDLE // 2
        self._heaps.clear()
        for account in self._accounts.values():
            self._list(account)
