"""`python -m corosrv` is the same as `corosrv`."""

from corosrv.cli import main

main()
