"""`python -m corosrv.worker --control FD --slots FD,FD,... --lifeline FD`: what a server starts, and nobody else."""

from __future__ import annotations

import sys

from corosrv.worker.child.child import main

if __name__ == "__main__":
    main(sys.argv[1:])
