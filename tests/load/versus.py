"""Tokens a second of corosrv and llama-server on the same model: `python -m tests.load.versus LLAMA_SERVER`.

Both run at once and are loaded in turn, several rounds; ratios are of medians. LLAMA_SERVER is the path of the peer's
program, built from the sources that the pinned llama-cpp-python carries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from corosrv.settings import packaged_model
from tests.load.clients import LoadClient, request
from tests.load.process import free_port, serving

CONTEXT = 1024
SLOTS = 32
THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_server")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 100])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ours_settings = {"SLOTS": str(SLOTS), "CTX": str(CONTEXT), "THREADS": str(THREADS)}
    with serving(ours_settings) as ours, llama_server(arguments.llama_server) as theirs:
        for n_clients in arguments.clients:
            compare(n_clients, arguments.tokens, arguments.rounds, ours.address, theirs)


def compare(n_clients: int, n_tokens: int, rounds: int, ours: tuple[str, int], theirs: tuple[str, int]) -> None:
    speeds: dict[str, list[float]] = {"corosrv": [], "llama-server": []}
    for number in range(rounds + 1):
        for name, address in (("corosrv", ours), ("llama-server", theirs)):
            speed = tokens_per_second(address, n_clients, n_tokens, number)
            if number > 0:  # the first one warms up
                speeds[name].append(speed)
    medians = {name: statistics.median(seen) for name, seen in speeds.items()}
    ratio = medians["corosrv"] / medians["llama-server"]
    spread = {name: f"{min(seen):.0f}-{max(seen):.0f}" for name, seen in speeds.items()}
    seen = ", ".join(f"{name} {median:.0f} tokens/s ({spread[name]})" for name, median in medians.items())
    print(f"{n_clients:4} clients: {seen}, ratio {ratio:.2f}", flush=True)


def tokens_per_second(address: tuple[str, int], n_clients: int, n_tokens: int, number: int) -> float:
    """All clients at once, each a chat of its own; every one must complete."""
    client = LoadClient(address)
    began = time.monotonic()
    for i in range(n_clients):
        body = {
            "messages": [{"role": "user", "content": f"Tell me a story about the number {number * 1000 + i}."}],
            "stream": True,
            "max_tokens": n_tokens,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": i,
            "cache_prompt": False,
        }
        client.open(request("/v1/chat/completions", json.dumps(body).encode()))
    outcome = client.run(600)
    if outcome.n_failed:
        raise RuntimeError(f"{outcome.n_failed} of {n_clients} streams failed: {set(outcome.failures)}")
    return n_clients * n_tokens / (time.monotonic() - began)


@contextlib.contextmanager
def llama_server(program: str) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [program, "-m", packaged_model(), "-t", str(THREADS), "-np", str(SLOTS), "-c", str(SLOTS * CONTEXT)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.1)
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
