"""`python -m corosrv.dialects.kserve.grpc --control FD --lifeline FD`: the gRPC process, which only a server starts."""

from __future__ import annotations

import sys

# -m puts the working directory first, where a module may be called as one of Python's is.
sys.path.pop(0)

import argparse
import logging

from corosrv.dialects.kserve.grpc.child import run
from corosrv.workers.worker.child import lifeline


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    ends = parser.parse_args(arguments)
    lifeline.hang_on(ends.lifeline)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # grpcio reads metadata that is not UTF-8 as Latin-1, and writes a traceback for it, whoever has sent it.
    logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "Invalid encoding" not in str(record.msg))
    run(ends.control)


if __name__ == "__main__":
    main(sys.argv[1:])
