"""Thousands of calls that wait for one slot: `python -m tests.load.waiting_calls [--calls 9000]`.

Each has a tensor of 1 kB and a connection of its own. Prints the memory that one takes of the front, in which its
connection is, how long GET /health takes meanwhile, the threads, and what is left when all clients have gone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import struct
import time

from corosrv.web.http import worker_watch
from tests.load.clients import request
from tests.load.handlers import APP
from tests.load.process import Server, serving, usage

LONG = 600.0  # seconds that the first call takes, for which all others wait
N_LOOKS = 200
PORTION = 500


def call() -> bytes:
    tensors = [
        {"name": "seconds", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}},
        {"name": "data", "datatype": "UINT8", "shape": [1024], "parameters": {"binary_data_size": 1024}},
    ]
    head = json.dumps({"inputs": tensors}).encode()
    first, rest = request("/v2/models/sleep/infer", head + struct.pack("<d", LONG) + bytes(1024)).split(b"\r\n", 1)
    return first + f"\r\nInference-Header-Content-Length: {len(head)}\r\n".encode() + rest


def wait_for_depth(server: Server, depth: int) -> None:
    deadline = time.monotonic() + 120
    while server.metric("corosrv_queue_depth") != depth:
        assert time.monotonic() < deadline, f"{server.metric('corosrv_queue_depth')} calls wait, not {depth}"
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=9000)
    n_calls = parser.parse_args().calls
    worker_watch.raise_limit()
    sent = call()
    with serving({"WORKER_APP": APP, "MAX_QUEUE": str(n_calls)}) as server, contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(server.address))
        first.sendall(sent)
        server.get("/health")
        before = usage(server.worker_pid)
        for n_sent in range(1, n_calls + 1):
            connection = stack.enter_context(socket.create_connection(server.address))
            connection.sendall(sent)
            if n_sent % PORTION == 0:  # whoever asks for the depth waits behind those who came before
                wait_for_depth(server, n_sent)
        wait_for_depth(server, n_calls)
        after = usage(server.worker_pid)
        times = []
        for _ in range(N_LOOKS):
            began = time.perf_counter()
            server.get("/health")
            times.append((time.perf_counter() - began) * 1e3)
        stack.close()
        wait_for_depth(server, 0)
        left = usage(server.worker_pid)
        for _ in range(100):  # connections are closed a moment after their calls have left the queue
            if left.descriptors <= before.descriptors:
                break
            time.sleep(0.1)
            left = usage(server.worker_pid)
    print(
        f"{n_calls} waiting calls: {(after.rss - before.rss) / n_calls / 1e3:.1f} kB each, "
        f"{after.threads - before.threads} threads more; GET /health p50 {statistics.median(times):.1f} ms, "
        f"p99 {statistics.quantiles(times, n=100)[98]:.1f} ms; descriptors left over: "
        f"{left.descriptors - before.descriptors}"
    )


if __name__ == "__main__":
    main()
