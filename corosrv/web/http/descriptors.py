"""The limit on open files of this process, and so on its clients."""

from __future__ import annotations

import resource

_PLENTY = 2**20


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _PLENTY if hard == resource.RLIM_INFINITY else hard
