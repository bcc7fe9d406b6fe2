"""Threads that encode give way to all others, as long as that leaves them some time."""

import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from corosrv.encoder import idle_policy
from corosrv.encoder.idle_policy import IdlePolicy
from tests.support.waiting import eventually

PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
# Says which policy a thread has before, in and after an encode.
PROGRAM = """
import os
from corosrv.encoder.idle_policy import IdlePolicy
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
policy = IdlePolicy()
with policy.encoding():
    print(os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


class Encode:
    """An encode in a thread that is nice, until it is told to end."""

    def __init__(self, policy: IdlePolicy, work: Callable[[threading.Event], object]) -> None:
        self._end = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(policy, work), daemon=True)
        self._thread.start()
        assert self._has_begun.wait(20)

    def _run(self, policy: IdlePolicy, work: Callable[[threading.Event], object]) -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        self._id = threading.get_native_id()
        with policy.encoding():
            self._has_begun.set()
            work(self._end)

    @property
    def policy(self) -> int:
        return os.sched_getscheduler(self._id)

    def end(self) -> None:
        self._end.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def policy():
    policy = IdlePolicy()
    if not policy.is_allowed:
        pytest.skip("this user may not leave the idle policy")
    return policy


def spin(end: threading.Event) -> None:
    while not end.is_set():
        pass


def test_an_encode_gives_way_to_all_others(policy):
    encode = Encode(policy, threading.Event.wait)

    assert encode.policy == os.SCHED_IDLE
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    encode.end()


def test_an_encode_that_is_starved_gives_way_no_more(policy, monkeypatch):
    monkeypatch.setattr(idle_policy, "LOOK", 0.2)
    encode = Encode(policy, threading.Event.wait)  # which takes no time of a processor

    eventually(lambda: encode.policy == os.SCHED_BATCH, what="the batch policy")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    encode.end()


def test_an_encode_that_gets_some_time_goes_on_giving_way(policy, monkeypatch):
    looks = []
    counted = SimpleNamespace(monotonic=lambda: looks.append(1) or time.monotonic(), process_time=time.process_time)
    monkeypatch.setattr(idle_policy, "LOOK", 0.2)
    monkeypatch.setattr(idle_policy, "time", counted)  # the policy's alone: what waits below has clocks as well
    encode = Encode(policy, spin)

    eventually(lambda: len(looks) > 3, what="three looks")
    assert encode.policy == os.SCHED_IDLE
    encode.end()


def test_who_may_not_leave_the_idle_policy_never_enters_it():
    def drop_privileges() -> None:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_NICE, (0, 0))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], preexec_fn=drop_privileges, capture_output=True, text=True, timeout=60
    )

    assert done.stdout == "True\n", done.stderr
