"""`python -m corosrv.workers.worker.app --control FD --lifeline FD`: a worker process, which only a server starts."""

from __future__ import annotations

import sys

# -m puts the working directory first, where a module of the author's may be called as one of Python's is.
_first_path = sys.path.pop(0)

from corosrv.workers.worker.child.app_child import main  # noqa: E402 - all that a worker needs comes from elsewhere

sys.path.insert(0, _first_path)

if __name__ == "__main__":
    main(sys.argv[1:])
