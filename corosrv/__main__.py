"""`python -m corosrv` is the same as `corosrv`."""

from corosrv.cli import run_main

run_main()
