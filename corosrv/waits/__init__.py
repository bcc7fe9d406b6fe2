"""Lets a greenlet wait for a descriptor, a thread or a process while others run, and a plain thread by blocking."""

from corosrv.waits.awake import AwakeClock, awake_clock
from corosrv.waits.elsewhere import call_in_thread, run_process
from corosrv.waits.hubs import ThreadLock, call_later, own_hub, spawn
from corosrv.waits.polling import INTERVAL
from corosrv.waits.waiters import HubWaiter, PollWaiter, SleepWaiter, TimedOut, Waiter, thread_id, wait_readable, waiter

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
