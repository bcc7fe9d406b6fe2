"""Watches the workers of gunicorn, wherever this folder is in PYTHONPATH: see tests/support/hub_watch.py."""

import os
import sys


def _watch_worker() -> None:
    arbiter = sys.modules.get("gunicorn.arbiter")
    file = os.environ.get("COROSRV_TESTS_HUB_WATCH")
    if arbiter is None or not file or os.getppid() != _master:
        return
    sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
    try:
        import hub_watch
    finally:
        del sys.path[0]
    hub_watch.watch_worker(file)


_master = os.getpid()
os.register_at_fork(after_in_child=_watch_worker)
