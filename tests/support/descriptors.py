"""What this process holds open, for tests that nothing is left behind."""

import gc
from pathlib import Path

import gevent

from tests.support.own_process import is_own_process


def n_descriptors(kind: str = "") -> int:
    """Counts open descriptors, of one kind as /proc names it (say "eventfd") or all, once garbage is collected.

    For tests marked `own_process`: what earlier ones left in a process would come and go behind a test's back.
    """
    assert is_own_process(), "a test that counts descriptors must be marked own_process"
    gc.collect()
    gevent.sleep(0)  # the hub closes what it watches in its next turn
    return sum(kind in _target(link) for link in Path("/proc/self/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the one that listed the directory
        return ""
