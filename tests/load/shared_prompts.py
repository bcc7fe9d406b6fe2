"""Prompts that begin alike, on two upstreams: `python -m tests.load.shared_prompts [--llama-server PROGRAM]`.

Questions behind eight system prompts of a thousand tokens come in turn. An upstream that has read a system prompt
before need not read it again. Prints the time to the first token under the policies round_robin and prefix, each with
upstreams that were started anew.
"""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import threading
import time
from collections.abc import Sequence

from corosrv.contracts.settings import model_list
from tests.load.upstream_servers import (
    MODEL,
    chat,
    corosrv_server,
    llama_server,
    load_front,
    machine_load,
    upstream_servers,
)

N_PROMPTS = 8
N_WORDS = 800  # of a system prompt: about a thousand tokens
SLOTS = 4  # of each upstream: together they can keep all prompts, each of them one half
CONTEXT = 2048
N_CLIENTS = 2
N_TOKENS = 2
PATIENCE = 300.0  # seconds
WORDS = (
    "river", "stone", "window", "garden", "letter", "morning", "silver", "market", "bridge", "winter", "candle",
    "mirror", "forest", "island", "paper", "summer", "hammer", "engine", "station", "village", "pocket", "kitchen",
)  # fmt: skip


def prompts(seed: int) -> list[str]:
    """Makes system prompts, of which no two begin alike."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=N_WORDS)) for _ in range(N_PROMPTS)]


def questions(n_rounds: int, seed: int = 1) -> list[bytes]:
    """Makes the bodies of all requests: in each round one behind each prompt, in an order of its own."""
    chance = random.Random(seed)
    systems = prompts(seed)
    bodies = []
    for number in range(n_rounds):
        for system in chance.sample(systems, len(systems)):
            bodies.append(chat(f"{system}\n\nQuestion {number}: what comes next?", N_TOKENS, stream=True, model=MODEL))
    return bodies


def first_tokens(address: tuple[str, int], bodies: Sequence[bytes], n_clients: int) -> list[float]:
    """Sends the requests from some clients; returns the seconds until each answer began, in the order of requests."""
    times = [0.0] * len(bodies)
    numbers = iter(range(len(bodies)))
    lock = threading.Lock()

    def ask() -> None:
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                connection.close()
                return
            began = time.monotonic()
            connection.request("POST", "/v1/chat/completions", bodies[number], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while b'"content":"' not in (line := answer.readline()) or b'"content":""' in line:
                assert line, f"no token came: {answer.status}"
            times[number] = time.monotonic() - began
            answer.read()

    clients = [threading.Thread(target=ask) for _ in range(n_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert all(times), "a client failed"
    return times


def command(program: str) -> list[str]:
    """Returns the command of an upstream with a real model."""
    if program:
        return llama_server(program, SLOTS, CONTEXT)
    return corosrv_server(SLOTS, CONTEXT, model_list.packaged_model())


def measure(policy: str, program: str, n_rounds: int) -> list[float]:
    """Returns the times to the first tokens behind prompts that were all seen before by some upstream."""
    with (
        upstream_servers(command(program), command(program)) as servers,
        load_front(servers, SLOTS, UPSTREAM_POLICY=policy) as front,
    ):
        return first_tokens(front.server.address, questions(n_rounds + 1), N_CLIENTS)[N_PROMPTS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--llama-server", default="", help="the program; otherwise corosrv with the same model")
    arguments = parser.parse_args()
    print(machine_load())
    medians = {}
    for policy in ("round_robin", "prefix"):
        times = measure(policy, arguments.llama_server, arguments.rounds)
        medians[policy] = statistics.median(times)
        print(
            f"{policy:12} time to the first token: p50 {1000 * medians[policy]:.0f} ms, "
            f"mean {1000 * statistics.mean(times):.0f} ms, of {len(times)} answers",
            flush=True,
        )
    print(f"prefix takes {medians['prefix'] / medians['round_robin']:.2f} of round_robin's time")
    print(machine_load())


if __name__ == "__main__":
    main()
