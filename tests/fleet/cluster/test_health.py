"""The link to Redis: its state, and who hears of changes."""

from __future__ import annotations

import logging

import pytest

from corosrv.fleet.cluster.health import LinkHealth


@pytest.fixture
def changes() -> list[bool]:
    return []


@pytest.fixture
def health(changes: list[bool]) -> LinkHealth:
    health = LinkHealth("host:1")
    health.on_change(changes.append)
    return health


def test_each_change_is_told_once(health: LinkHealth, changes: list[bool], caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "corosrv.cluster"):
        for _ in range(3):
            health.succeed()
        for _ in range(3):
            health.fail("refused")
        health.succeed()

    assert changes == [True, False, True]
    assert caplog.messages == [
        "Redis at host:1 answers",
        "Redis at host:1 is away: refused",
        "Redis at host:1 answers",
    ]


def test_it_is_down_before_the_first_success(health: LinkHealth, changes: list[bool]):
    health.fail("refused")

    assert (health.is_up, health.reason, changes) == (False, "refused", [])


def test_a_listener_that_fails_keeps_nobody_from_hearing(health: LinkHealth, caplog: pytest.LogCaptureFixture):
    later: list[bool] = []
    health.on_change(lambda is_up: 1 / 0)
    health.on_change(later.append)

    health.succeed()

    assert later == [True]
    assert "a listener to the link to Redis failed" in caplog.text
