"""Calls of handlers that do nothing, over REST: `python -m tests.load.handlers [--seconds 4] [--rounds 3] [--profile]`.

Tensors of 1 kB in and out. Prints the time of one call alone beside that of GET /health, which costs what the front
itself does; how many calls a second go through; the processor time of each in the front and in its worker; how many
bytes a second tensors of 1 MiB make; and how the front's time compares with that of GET /health, in turn with it.
--profile: where the front spends its time, with 1 kB and with 1 MiB (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from functools import partial
from pathlib import Path

from tests.load.callers import Outcome, run
from tests.load.clients import request
from tests.load.predictions import HEALTH, profile
from tests.load.process import Server, serving, usage

N_CONNECTIONS = 16
N_TURNS = 9
APP = str(Path(__file__).parent.parent / "apps" / "plain.py") + ":app"


def infer(model: str, n_bytes: int, is_binary: bool = True) -> bytes:
    """A call with one tensor of so many bytes, in the binary form or as JSON."""
    tensor = {"name": "data", "datatype": "UINT8" if is_binary else "INT32"}
    if not is_binary:
        tensor |= {"shape": [n_bytes // 4], "data": list(range(n_bytes // 4))}
        return request(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    tensor |= {"shape": [n_bytes], "parameters": {"binary_data_size": n_bytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    whole = request(f"/v2/models/{model}/infer", head + bytes(n_bytes))
    first, rest = whole.split(b"\r\n", 1)
    return first + f"\r\nInference-Header-Content-Length: {len(head)}\r\n".encode() + rest


def handler_pid(server: Server) -> int:
    """The process that runs the handlers of the first worker."""
    tasks = Path(f"/proc/{server.worker_pid}/task").iterdir()
    (pid, *_) = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return pid


def alone(server: Server, what: str, sent: bytes, seconds: float) -> float:
    outcome = run(server.address, sent, 1, seconds)
    print(f"{what}, one alone: p50 {outcome.percentile(50):.2f} ms, {len(outcome.refusals)} refused", flush=True)
    return outcome.percentile(50)


def many(server: Server, what: str, sent: bytes, seconds: float) -> Outcome:
    worker = handler_pid(server)
    before, worker_before = usage(server.worker_pid), usage(worker)
    outcome = run(server.address, sent, N_CONNECTIONS, seconds)
    after, worker_after = usage(server.worker_pid), usage(worker)
    n = len(outcome.times)
    front_us, worker_us = (after.cpu - before.cpu) / n * 1e6, (worker_after.cpu - worker_before.cpu) / n * 1e6
    print(
        f"{what}, {N_CONNECTIONS} connections: {n / seconds:.0f}/s, p50 {outcome.percentile(50):.1f} ms, "
        f"p99 {outcome.percentile(99):.1f} ms, {len(outcome.refusals)} refused; processor time of each: "
        f"front {front_us:.0f} us, worker {worker_us:.0f} us",
        flush=True,
    )
    return outcome


def front_cost(server: Server, sent: bytes) -> float:
    """Seconds of the front's main thread for each of half a second of requests."""
    before = usage(server.worker_pid)
    outcome = run(server.address, sent, N_CONNECTIONS, 0.5)
    return (usage(server.worker_pid).main_cpu - before.main_cpu) / len(outcome.times)


def compare(server: Server, calls: dict[str, bytes]) -> None:
    """Prints how much longer than GET /health each call takes, asked in turn: load from elsewhere slows both."""
    rounds = [
        (front_cost(server, HEALTH), [front_cost(server, sent) for sent in calls.values()]) for _ in range(N_TURNS)
    ]
    for number, what in enumerate(calls):
        ratio = statistics.median(costs[number] / health for health, costs in rounds)
        print(f"{what}: the front's thread takes {ratio:.1f} times as long as for GET /health", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    small, as_json, large = infer("echo", 1024), infer("echo", 1024, is_binary=False), infer("echo", 1 << 20)
    with serving({"WORKER_APP": APP}) as server:
        run(server.address, small, N_CONNECTIONS, 1.0)  # warm
        added = []
        for _ in range(arguments.rounds):
            health = alone(server, "GET /health", HEALTH, seconds / 4)
            added.append(alone(server, "1 kB", small, seconds / 4) - health)
        print(f"added to the front's own time: p50 {statistics.median(added):.2f} ms")
        looking = partial(profile, server.worker_pid, seconds) if arguments.profile else contextlib.nullcontext
        for _ in range(arguments.rounds):
            with looking():
                many(server, "1 kB", small, seconds)
            many(server, "GET /health", HEALTH, seconds / 2)
            many(server, "1 kB as JSON", as_json, seconds / 2)
            with looking():
                outcome = many(server, "1 MiB", large, seconds)
            n_bytes = 2 * len(outcome.times) * (1 << 20)
            print(f"1 MiB in and 1 MiB out: {n_bytes / seconds / 1e6:.0f} MB/s", flush=True)
        compare(server, {"1 kB": small, "1 kB as JSON": as_json, "1 MiB": large})


if __name__ == "__main__":
    main()
