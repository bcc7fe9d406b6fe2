"""When free memory is given back to the system."""

from __future__ import annotations

import threading

import gevent
import pytest
from gevent import get_hub

from corosrv.web.http import heap
from corosrv.web.http.heap import LARGE, HeapTrimmer


@pytest.fixture
def trimmed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    monkeypatch.setattr(heap, "PAUSE", 0.0)
    get_hub()
    return threading.Semaphore(0)


def note(trimmer: HeapTrimmer, *held: int) -> None:
    for n_bytes in held:
        trimmer.note(n_bytes)
    gevent.sleep(0.01)  # lets the hub start what is due
    gevent.idle()


def count(trimmed: threading.Semaphore, n: int) -> bool:
    """Returns whether the heap was trimmed so many times, and no more."""
    return all(trimmed.acquire(timeout=10) for _ in range(n)) and not trimmed.acquire(blocking=False)


def test_the_heap_is_trimmed_once_most_of_much_is_let_go_of(trimmed: threading.Semaphore):
    trimmer = HeapTrimmer(trimmed.release)

    note(trimmer, LARGE // 2, LARGE, LARGE // 2)
    assert count(trimmed, 0)
    note(trimmer, LARGE // 4, LARGE // 5, 0)

    assert count(trimmed, 1)
    note(trimmer, LARGE // 2, 0)
    assert count(trimmed, 0)
    note(trimmer, 2 * LARGE, 0)
    assert count(trimmed, 1)


def test_little_is_kept(trimmed: threading.Semaphore):
    note(HeapTrimmer(trimmed.release), LARGE - 1, 0)

    assert count(trimmed, 0)


def test_the_c_librarys_own_trimming_can_be_called(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heap, "PAUSE", 0.0)
    trimmer = HeapTrimmer()

    note(trimmer, LARGE, 0)

    assert trimmer._trim is not None
    assert trimmer._trim() in (0, 1)
