"""The equation of permits, after whatever is done to them."""

from __future__ import annotations

import logging

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from corosrv.dispatch.permits import Permit, PermitPool


class Permits(RuleBasedStateMachine):
    """Does anything in any order, beside a model: which slots are idle, which permits are held, what is poisoned."""

    permits = Bundle("permits")

    @initialize(n_slots=st.integers(1, 5))
    def make(self, n_slots: int) -> None:
        self.pool = PermitPool(range(10, 10 + n_slots))
        self.idle = set(range(10, 10 + n_slots))
        self.held: dict[int, Permit] = {}
        self.poisoned: dict[int, str] = {}

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

    @rule(permit=permits, reason=st.sampled_from("ab"))
    def poison(self, permit: Permit | None, reason: str) -> None:
        if permit is None:
            return
        permit.poison(reason)

        if self.held.get(permit.slot) is permit:
            del self.held[permit.slot]
            self.poisoned[permit.slot] = reason

    @rule(slot=st.integers(10, 14), reason=st.sampled_from("ab"))
    def poison_slot(self, slot: int, reason: str) -> None:
        if slot >= 10 + self.pool.total:
            return
        self.pool.poison(slot, reason)

        self.idle.discard(slot)
        self.held.pop(slot, None)
        self.poisoned.setdefault(slot, reason)

    @invariant()
    def the_equation_holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert pool.available + pool.in_use + pool.poisoned == pool.total
        assert (pool.available, pool.in_use, dict(pool.reasons)) == (len(self.idle), len(self.held), self.poisoned)
        assert all(permit.is_held for permit in self.held.values())


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


def test_an_unknown_slot_cannot_be_poisoned() -> None:
    with pytest.raises(KeyError):
        PermitPool([1]).poison(2, "broken")


def test_a_slot_cannot_be_named_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        PermitPool([1, 1])
