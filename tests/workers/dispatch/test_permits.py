"""The equation of permits, after whatever is done to them."""

from __future__ import annotations

import logging

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from corosrv.workers.dispatch.host import Permit, PermitPool


class Permits(RuleBasedStateMachine):
    """Does anything in any order, beside a model: which slots are idle, which permits are held, what is poisoned."""

    permits = Bundle("permits")

    @initialize(n_slots=st.integers(1, 5))
    def make(self, n_slots: int) -> None:
        self.pool = PermitPool(range(10, 10 + n_slots))
        self.idle = set(range(10, 10 + n_slots))
        self.held: dict[int, Permit] = {}
        self.retiring: dict[int, Permit] = {}
        self.poisoned: dict[int, str] = {}

    @rule(slot=st.integers(10, 16))
    def add(self, slot: int) -> None:
        if slot in self.pool:
            with pytest.raises(ValueError, match="twice"):
                self.pool.add(slot)
        else:
            self.pool.add(slot)
            self.idle.add(slot)

    @rule(slot=st.integers(10, 16))
    def retire(self, slot: int) -> None:
        if slot not in self.pool:
            with pytest.raises(KeyError):
                self.pool.retire(slot)
            return
        self.pool.retire(slot)

        self.idle.discard(slot)
        self.poisoned.pop(slot, None)
        if slot in self.held:
            self.retiring[slot] = self.held.pop(slot)

    @rule(target=permits)
    def acquire(self) -> Permit | None:
        permit = self.pool.try_acquire()

        if permit is None:
            assert not self.idle
        else:
            self.idle.remove(permit.slot)
            self.held[permit.slot] = permit
        return permit

    @rule(permit=permits)
    def release(self, permit: Permit | None) -> None:
        if permit is None:
            return
        permit.release()

        if self.held.get(permit.slot) is permit:
            del self.held[permit.slot]
            self.idle.add(permit.slot)
        elif self.retiring.get(permit.slot) is permit:
            del self.retiring[permit.slot]

    @rule(permit=permits, reason=st.sampled_from("ab"))
    def poison(self, permit: Permit | None, reason: str) -> None:
        if permit is None:
            return
        permit.poison(reason)

        if self.held.get(permit.slot) is permit:
            del self.held[permit.slot]
            self.poisoned[permit.slot] = reason
        elif self.retiring.get(permit.slot) is permit:
            del self.retiring[permit.slot]

    @rule(slot=st.integers(10, 14), reason=st.sampled_from("ab"))
    def poison_slot(self, slot: int, reason: str) -> None:
        if slot not in self.pool:
            return
        self.pool.poison(slot, reason)

        if self.retiring.pop(slot, None) is not None:
            return
        self.idle.discard(slot)
        self.held.pop(slot, None)
        self.poisoned.setdefault(slot, reason)

    @invariant()
    def the_equation_holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert pool.available + pool.in_use + pool.poisoned + pool.retiring == pool.total
        counts = len(self.idle), len(self.held), len(self.retiring), self.poisoned
        assert (pool.available, pool.in_use, pool.retiring, dict(pool.reasons)) == counts
        assert all(permit.is_held for permit in (*self.held.values(), *self.retiring.values()))


TestPermits = Permits.TestCase


def test_there_are_no_more_permits_than_slots() -> None:
    pool = PermitPool([3, 5])

    slots = [permit.slot for permit in (pool.try_acquire(), pool.try_acquire()) if permit is not None]

    assert sorted(slots) == [3, 5]
    assert pool.try_acquire() is None


def test_a_poisoned_slot_never_returns_to_the_pool() -> None:
    pool = PermitPool([1])
    permit = pool.try_acquire()
    assert permit is not None

    permit.poison("broken")
    permit.release()

    assert pool.try_acquire() is None
    assert (pool.available, pool.in_use, pool.poisoned) == (0, 0, 1)


def test_an_idle_slot_that_is_poisoned_is_available_no_more() -> None:
    pool = PermitPool([1, 2])

    pool.poison(1, "broken")

    assert (pool.available, pool.in_use, pool.poisoned) == (1, 0, 1)
    assert pool.reasons == {1: "broken"}


def test_a_second_release_changes_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pool = PermitPool([1])
    first = pool.try_acquire()
    assert first is not None
    first.release()
    second = pool.try_acquire()

    with caplog.at_level(logging.WARNING, "corosrv.permits"):
        first.release()

    assert second is not None
    assert second.is_held
    assert pool.in_use == 1
    assert "slot 1 was given back a second time" in caplog.text


def test_an_added_slot_is_handed_out() -> None:
    pool = PermitPool()
    assert pool.try_acquire() is None

    pool.add(7)

    permit = pool.try_acquire()
    assert permit is not None
    assert permit.slot == 7


def test_an_idle_slot_retires_at_once() -> None:
    pool = PermitPool([1, 2])

    pool.retire(1)

    assert (pool.available, pool.total, 1 in pool) == (1, 1, False)


def test_a_held_slot_retires_when_it_is_given_back() -> None:
    pool = PermitPool([1])
    permit = pool.try_acquire()
    assert permit is not None

    pool.retire(1)
    assert (permit.is_held, pool.in_use, pool.retiring, pool.total) == (True, 0, 1, 1)
    permit.release()

    assert (permit.is_held, pool.retiring, pool.total) == (False, 0, 0)
    assert pool.try_acquire() is None


def test_a_poisoned_slot_retires_and_may_come_again() -> None:
    pool = PermitPool([1])
    pool.poison(1, "broken")

    pool.retire(1)
    pool.add(1)

    assert (pool.available, pool.poisoned, pool.total) == (1, 0, 1)


def test_an_unknown_slot_cannot_be_poisoned() -> None:
    with pytest.raises(KeyError):
        PermitPool([1]).poison(2, "broken")


def test_a_slot_cannot_be_named_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        PermitPool([1, 1])
