"""Short chats that a front forwards: `python -m tests.load.upstream_chats [--seconds 5] [--rounds 3] [--profile]`.

The upstream is one corosrv with the synthetic model. First one streamed chat at a time, straight to the upstream and
through the front in turn: prints the median time to the first token of both. Then 32 connections ask for one token
each, again and again: prints how many chats a second are answered, and the processor time that one takes of the front's
thread. --profile: where the front spends its time (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.load.callers import Outcome
from tests.load.callers import run as run_callers
from tests.load.clients import LoadClient, request
from tests.load.predictions import profile
from tests.load.process import usage
from tests.load.upstream_servers import LoadedFront, chat, corosrv_server, load_front, machine_load, upstream_servers

N_CONNECTIONS = 32
PATH = "/v1/chat/completions"
STREAM = request(PATH, chat("Say a word.", 2, stream=True))
SHORT = request(PATH, chat("Say one word.", 1))
COMMAND = corosrv_server(N_CONNECTIONS, 512, "synthetic:?tokens_per_s=0")


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds from the connection to the first token, of chats that ran alone."""

    direct: Sequence[float]
    forwarded: Sequence[float]

    @property
    def added(self) -> float:
        """Returns what the front adds to the median, in seconds."""
        return statistics.median(self.forwarded) - statistics.median(self.direct)


def first_tokens(upstream: int, front: int, count: int) -> FirstTokens:
    """Asks two ports in turn, so that what else the machine does meets both."""
    taken: dict[int, list[float]] = {upstream: [], front: []}
    for _ in range(count):
        for port, seconds in taken.items():
            client = LoadClient(("127.0.0.1", port))
            client.open(STREAM)
            outcome = client.run(10.0)
            assert outcome.n_done == 1, outcome.failures
            seconds += outcome.first_events
    return FirstTokens(taken[upstream], taken[front])


@dataclass(frozen=True, slots=True)
class Throughput:
    """What one round of short chats gave."""

    outcome: Outcome
    seconds: float
    cpu: float  # seconds of the front's thread

    @property
    def rate(self) -> float:
        return len(self.outcome.times) / self.seconds

    @property
    def cost(self) -> float:
        """Returns the milliseconds of the front's thread that one chat took."""
        return 1e3 * self.cpu / len(self.outcome.times)


def throughput(front: LoadedFront, seconds: float) -> Throughput:
    """Sends short chats over 32 connections for so many seconds."""
    pid, address = front.server.worker_pid, front.server.address
    before = usage(pid)
    outcome = run_callers(address, SHORT, N_CONNECTIONS, seconds)
    return Throughput(outcome, seconds, usage(pid).main_cpu - before.main_cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    print(machine_load())
    with upstream_servers(COMMAND) as (upstream,), load_front([upstream], N_CONNECTIONS) as front:
        throughput(front, 1.0)  # warm
        taken = first_tokens(upstream.port, front.server.address[1], 300)
        print(
            f"first token p50: direct {1e3 * statistics.median(taken.direct):.2f} ms, forwarded "
            f"{1e3 * statistics.median(taken.forwarded):.2f} ms, added {1e3 * taken.added:.2f} ms"
        )
        pid, seconds = front.server.worker_pid, arguments.seconds
        with profile(pid, arguments.rounds * seconds) if arguments.profile else contextlib.nullcontext():
            for _ in range(arguments.rounds):
                figures = throughput(front, seconds)
                print(
                    f"{figures.rate:.0f} forwarded chats/s, p50 {figures.outcome.percentile(50):.1f} ms, "
                    f"p99 {figures.outcome.percentile(99):.1f} ms, {len(figures.outcome.refusals)} refused; "
                    f"{figures.cost:.3f} ms of the front's thread for each",
                    flush=True,
                )
    print(machine_load())


if __name__ == "__main__":
    main()
