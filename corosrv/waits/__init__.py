"""How a greenlet waits: for a descriptor, a thread or a process, while others run; and a plain thread, by blocking."""

from corosrv.waits.elsewhere import call_in_thread, run_process
from corosrv.waits.waiters import HubWaiter, PollWaiter, TimedOut, Waiter, thread_id, wait_readable, waiter

__all__ = [
    "HubWaiter",
    "PollWaiter",
    "TimedOut",
    "Waiter",
    "call_in_thread",
    "run_process",
    "thread_id",
    "wait_readable",
    "waiter",
]
