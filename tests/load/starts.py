"""How a server starts and ends: `python -m tests.load.starts [--versus CHECKOUT] [--rounds 5] [--model FILE]`.

Starts `corosrv serve` with defaults again and again, in turn with that of another checkout that is built, and prints
the median seconds until its health is ok, the processor time of all its processes from their start to their end, the
most memory that one of them has had, and the seconds that its end takes.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from corosrv.contracts.settings import model_list
from tests.load.process import peak_memory
from tests.serve.server import REPOSITORY, free_port

PATIENCE = 120.0  # seconds
PROGRAM = "from corosrv.cli import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versus", type=Path, help="another checkout, whose native core is built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rest", type=float, default=3.0, help="seconds that a server has between its start and end")
    parser.add_argument("--model", help="a GGUF file; SmolLM2 without it")
    options = parser.parse_args()
    model = options.model or model_list.packaged_model()
    checkouts = [REPOSITORY, *([options.versus] if options.versus else [])]
    seen: dict[Path, list[tuple[float, ...]]] = {checkout: [] for checkout in checkouts}
    for number in range(options.rounds):
        for checkout in checkouts[:: -1 if number % 2 else 1]:
            seen[checkout].append(run(checkout, model, options.rest))
    print(f"{'':40} {'ready s':>8} {'cpu s':>8} {'peak MB':>8} {'end s':>8}")
    for checkout, runs in seen.items():
        medians = map(statistics.median, zip(*runs, strict=True))
        print(f"{checkout!s:40.40} " + " ".join(f"{median:8.2f}" for median in medians))


def run(checkout: Path, model: str, rest: float) -> tuple[float, ...]:
    """Starts a server, leaves it alone for a while, and ends it; returns what is printed of it."""
    port = free_port()
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", str(port), "--model", model]
    environ = os.environ | {"PYTHONPATH": str(checkout)}
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environ, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            while not is_ok(port):
                assert server.poll() is None, f"the server of {checkout} ended at once"
                assert time.monotonic() - began < PATIENCE, f"the server of {checkout} is not ready"
                time.sleep(0.01)
            ready = time.monotonic() - began
            time.sleep(rest)
            peak = max(map(peak_memory, family(server.pid))) / 1e6
        finally:
            server.send_signal(signal.SIGTERM)
        told = time.monotonic()
        _, status, used = os.wait4(server.pid, 0)
        server.returncode = os.waitstatus_to_exitcode(status)
        return ready, used.ru_utime + used.ru_stime, peak, time.monotonic() - told


def is_ok(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def family(pid: int) -> list[int]:
    """Returns a process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


if __name__ == "__main__":
    main()
