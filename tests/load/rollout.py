"""Sends thousands of groups to a server, and counts what came of them: `python -m tests.load.rollout`."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass

from corosrv.client import RolloutReport, rollout
from tests.load.process import serving, usage


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """What a rollout took: seconds by the clock, and of the processor for the client and the server."""

    report: RolloutReport
    indices: list[int]  # of the groups, in the order in which they came
    n_answers: int
    seconds: float
    client_seconds: float
    server_seconds: float


def run(n_prompts: int, n: int, max_tokens: int, concurrency: int, model: str, slots: int) -> RolloutResult:
    """Runs one rollout against a server of its own."""
    settings = {"MODEL": model, "SLOTS": str(slots), "CTX": "1024"}
    with serving(settings) as server:
        server_before, client_before, began = usage(server.worker_pid).cpu, time.process_time(), time.monotonic()
        prompts = (f"prompt number {number}" for number in range(n_prompts))
        with rollout(prompts, n, url=server.url, max_tokens=max_tokens, concurrency=concurrency) as groups:
            ended = [(group.index, len(group.answers)) for group in groups]
        return RolloutResult(
            report=groups.report,
            indices=[index for index, _ in ended],
            n_answers=sum(n_answers for _, n_answers in ended),
            seconds=time.monotonic() - began,
            client_seconds=time.process_time() - client_before,
            server_seconds=usage(server.worker_pid).cpu - server_before,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--model", default="synthetic:")
    parser.add_argument("--slots", type=int, default=64)
    options = parser.parse_args()
    result = run(options.prompts, options.n, options.max_tokens, options.concurrency, options.model, options.slots)
    n_groups = len(result.indices)
    client_ms, server_ms = (1000 * seconds / n_groups for seconds in (result.client_seconds, result.server_seconds))
    print(result.report)
    print(
        f"{n_groups / result.seconds:.0f} groups/s ({result.n_answers / result.seconds:.0f} answers/s) in "
        f"{result.seconds:.1f} s on {os.cpu_count()} processors; processor time of a group: client {client_ms:.2f}, "
        f"server {server_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()
