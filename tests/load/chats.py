"""Short chats on the synthetic model: `python -m tests.load.chats [--seconds 5] [--rounds 3] [--profile]`.

32 connections ask for one token each, again and again. Prints how many chats a second are answered, and the processor
time that one takes of the thread that serves HTTP. --profile: where the server spends its time (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from dataclasses import dataclass

from tests.load.callers import Outcome
from tests.load.callers import run as run_callers
from tests.load.clients import request
from tests.load.predictions import profile
from tests.load.process import Server, serving, usage

N_CONNECTIONS = 32
BODY = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 1}
CHAT = request("/v1/chat/completions", json.dumps(BODY).encode())
SETTINGS = {"MODEL": "synthetic:?tokens_per_s=0", "SLOTS": str(N_CONNECTIONS), "CTX": "512"}


@dataclass(frozen=True, slots=True)
class Throughput:
    """Holds what one round of short chats gave."""

    outcome: Outcome
    seconds: float
    cpu: float  # seconds of the thread that serves HTTP

    @property
    def rate(self) -> float:
        """Returns the chats a second."""
        return len(self.outcome.times) / self.seconds

    @property
    def cost(self) -> float:
        """Returns the milliseconds of the thread that serves HTTP that one chat took."""
        return 1e3 * self.cpu / len(self.outcome.times)

    def __str__(self) -> str:
        outcome = self.outcome
        return (
            f"{self.rate:.0f} chats/s, p50 {outcome.percentile(50):.1f} ms, p99 {outcome.percentile(99):.1f} ms, "
            f"{len(outcome.refusals)} refused; {self.cost:.3f} ms of the front's thread for each"
        )


def throughput(server: Server, sent: bytes, seconds: float) -> Throughput:
    """Sends a request over 32 connections, again and again, for so many seconds."""
    before = usage(server.worker_pid)
    outcome = run_callers(server.address, sent, N_CONNECTIONS, seconds)
    return Throughput(outcome, seconds, usage(server.worker_pid).main_cpu - before.main_cpu)


def show(server: Server, sent: bytes, options: argparse.Namespace) -> None:
    """Prints the throughput of each round, and the median cost of a chat."""
    costs = []
    length = options.rounds * options.seconds
    with profile(server.worker_pid, length) if options.profile else contextlib.nullcontext():
        for _ in range(options.rounds):
            figures = throughput(server, sent, options.seconds)
            print(figures, flush=True)
            costs.append(figures.cost)
    print(f"median: {statistics.median(costs):.3f} ms of the front's thread for each chat")


def read_options(description: str | None) -> argparse.Namespace:
    """Returns what the command line says: seconds, rounds and profile."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = read_options(__doc__)
    with serving(SETTINGS) as server:
        throughput(server, CHAT, 1.0)  # warm
        show(server, CHAT, options)


if __name__ == "__main__":
    main()
