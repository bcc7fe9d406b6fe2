"""Clients that leave at random moments, on the real model: `python -m tests.load.disconnects [--clients 1000]`.

Prints what is left of them, which has to be nothing, and whether the next request works.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from tests.load.clients import LoadClient, request
from tests.load.process import Server, serving, usage

AT_ONCE = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with serving({"SLOTS": "32", "CTX": "1024"}) as server:
        for name, value in measure(server, arguments.clients, random.Random(arguments.seed)).items():
            print(f"{name:34} {value}")


def measure(server: Server, n_clients: int, chance: random.Random) -> dict[str, object]:
    answer_once(server)
    before = usage(server.worker_pid)
    client = LoadClient(server.address)
    n_opened = 0
    while n_opened < n_clients or client.n_open:
        while n_opened < n_clients and client.n_open < AT_ONCE:
            client.open(chat(is_stream=chance.random() < 0.7))
            n_opened += 1
        client.run_for(chance.uniform(0.0, 0.3))
        for stream in client.streams():
            if chance.random() < 0.4:
                client.drop(stream)
    left = wait_until_idle(server, timeout=10)
    after = usage(server.worker_pid)
    answer_once(server)
    return {
        "clients that left early": n_opened - client.outcome.n_done,
        "slots / queue / readers left": " / ".join(f"{value:.0f}" for value in left),
        "open streams left": f"{server.metric('corosrv_open_streams'):.0f}",
        "descriptors before / after": f"{before.descriptors} / {after.descriptors}",
        "threads before / after": f"{before.threads} / {after.threads}",
        "the next request": "works",
    }


def chat(is_stream: bool) -> bytes:
    body = {
        "messages": [{"role": "user", "content": "Write a long story about a lighthouse."}],
        "stream": is_stream,
        "max_tokens": 200,
        "ignore_eos": True,
    }
    return request("/v1/chat/completions", json.dumps(body).encode())


def answer_once(server: Server) -> None:
    client = LoadClient(server.address)
    client.open(chat(is_stream=True).replace(b'"max_tokens": 200', b'"max_tokens":   4'))
    if client.run(60).n_failed:
        raise RuntimeError(f"a plain request failed: {client.outcome.failures}")


def wait_until_idle(server: Server, timeout: float) -> list[float]:
    names = ("corosrv_running", "corosrv_waiting", "corosrv_readers")
    deadline = time.monotonic() + timeout
    while True:
        left = [server.metric(name) for name in names]
        if not any(left) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


if __name__ == "__main__":
    main()
