"""One stream beside programs that use the processors: `python -m tests.load.busy_neighbours [--rounds N]`.

Prints the tokens a second of three servers, in turn, beside no and beside one program that computes all the time: one
server chooses how many of its threads compute a step, in one all compute (it records, which keeps their number), and
one has a single thread. Each is asked for some seconds before it counts: what it learnt beside others is old.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

from tests.load.process import Server, serving

N_TOKENS = 100  # of an answer
PATIENCE = 300.0  # seconds
BUSY = "while True: pass"


@contextlib.contextmanager
def busy_programs(n: int) -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def tokens_per_s(server: Server, seconds: float) -> float:
    """Asks for one text after the other; returns what they had of tokens in a second."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": N_TOKENS, "temperature": 1, "ignore_eos": True})
    request = urllib.request.Request(
        f"{server.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    began, n_tokens = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            n_tokens += json.loads(answer.read())["usage"]["completion_tokens"]
    return n_tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each server in each round")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="programs beside them")
    options = parser.parse_args()
    n = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_servers:
        settings = {
            f"up to {n} threads": {"THREADS": str(n), "SPECULATION": "0"},
            f"{n} threads": {"THREADS": str(n), "SPECULATION": "0", "RECORD": f"{folder}/engine.rec"},
            "1 thread": {"THREADS": "1", "SPECULATION": "0"},
        }
        servers = {name: open_servers.enter_context(serving(chosen)) for name, chosen in settings.items()}
        for n_busy in options.busy:
            seen: dict[str, list[float]] = {name: [] for name in servers}
            with busy_programs(n_busy):
                for _ in range(options.rounds):
                    for name, server in servers.items():
                        tokens_per_s(server, options.seconds / 2)
                        seen[name].append(tokens_per_s(server, options.seconds))
            for name, values in seen.items():
                median = statistics.median(values)
                print(f"{n_busy} busy programs, {name}: {median:.0f} tokens/s ({min(values):.0f} to {max(values):.0f})")


if __name__ == "__main__":
    main()
