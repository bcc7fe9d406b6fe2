"""Lets a greenlet wait for a descriptor, a thread or a process while others run, and a plain thread by blocking."""

from corosrv.base.waits.elsewhere import (
    AwakeClock,
    ThreadLock,
    awake_clock,
    call_in_thread,
    call_later,
    own_hub,
    run_process,
    spawn,
)
from corosrv.base.waits.waiters import (
    INTERVAL,
    HubWaiter,
    PollWaiter,
    SleepWaiter,
    TimedOut,
    Waiter,
    thread_id,
    wait_readable,
    waiter,
)

__all__ = [
    "INTERVAL",
    "AwakeClock",
    "HubWaiter",
    "PollWaiter",
    "SleepWaiter",
    "ThreadLock",
    "TimedOut",
    "Waiter",
    "awake_clock",
    "call_in_thread",
    "call_later",
    "own_hub",
    "run_process",
    "spawn",
    "thread_id",
    "wait_readable",
    "waiter",
]
