"""Runs an engine's process, which only a front starts.

`python -m corosrv.models.engine.process --socket FD --lock FD --settings FD --digest HEX --folder PATH`, with
`--log-level NUMBER` and `--log-json` for a log like the front's.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import _socket
import argparse
import faulthandler
import logging
import os
import signal
from pathlib import Path

import msgspec

from corosrv.base.json_log import JsonFormatter
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from corosrv.models.engine.process.connector import fault_path
from corosrv.models.engine.process.host import EngineHost


def main(arguments: list[str]) -> None:
    """Serves fronts until the last one has left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True, help="listens")
    parser.add_argument("--lock", type=int, required=True, help="is held for as long as this process lives")
    parser.add_argument("--settings", type=int, required=True, help="a file with the model's settings")
    parser.add_argument("--digest", required=True)
    parser.add_argument("--folder", required=True, help="the run directory")
    parser.add_argument("--log-level", type=int, default=logging.INFO, help="as Python numbers them")
    parser.add_argument("--log-json", action="store_true", help="lines of the log are JSON")
    options = parser.parse_args(arguments)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger, which waits, in a process that is ending
    logging.basicConfig(level=options.log_level, format="%(asctime)s [%(process)d] [%(levelname)s] %(message)s")
    if options.log_json:
        logging.getLogger().handlers[0].setFormatter(JsonFormatter())
    # A terminal and a service manager signal all processes at once: fronts let their streams end, and need this one.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # What it says of a crash remains when the process has ended; nothing is written where somebody has killed it.
    faults = fault_path(options.folder, options.digest, os.getpid())
    faulthandler.enable(os.open(faults, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    settings = msgspec.msgpack.decode(_read(options.settings), type=ModelSettings)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, options.socket)
    # By when its lock was touched last, fronts know which engine was used least recently.
    EngineHost(
        Engine(settings), listener, options.digest, settings.names[0], on_use=lambda: os.utime(options.lock)
    ).run()
    Path(faults).unlink(missing_ok=True)
    logging.shutdown()
    os._exit(0)  # destructors of libllama would wait for its threads


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)
        return file.read()


if __name__ == "__main__":
    main(sys.argv[1:])
