"""Measures what COROSRV_KV_UNIFIED=1 costs: `python -m tests.load.shared_context`.

Two engines of the packaged model, with contexts of their own for each slot and with one for all of them, decode for
some clients in turn, with one compute thread; the ratio is that of their processor time, which other work on the
machine disturbs less than the clock's. tests/load/long_context.py measures what it saves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corosrv.contracts.jobs import Job, Sampling, Tokens
from corosrv.contracts.settings import load
from corosrv.models.engine import Engine
from tests.support.engines import packaged_model

SLOTS = 32
CONTEXT = 1024  # tokens of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, SLOTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--kernels", choices=["auto", "ggml"], default="auto")
    options = parser.parse_args()
    for n_clients in options.clients:
        compare(n_clients, options.rounds, options.tokens, options.kernels)


@contextmanager
def opened(is_shared: bool, kernels: str) -> Iterator[Engine]:
    chosen = {"model": packaged_model(), "slots": SLOTS, "ctx": CONTEXT, "threads": 1, "kernels": kernels}
    engine = Engine(load({**chosen, "kv_unified": is_shared}).models[0])
    engine.open()
    try:
        yield engine
    finally:
        engine.close()


def prompt(n_tokens: int, first: int) -> Tokens:
    """Returns tokens that begin like those of no other `first`."""
    return Tokens(tuple(300 + (first * 7919 + 17 * i * i + i) % 40_000 for i in range(n_tokens)))


def serve(engine: Engine, prompts: Sequence[Tokens], n_tokens: int) -> None:
    sampling = Sampling(temperature=0, ignore_eos=True)
    jobs = [Job((it,), max_tokens=n_tokens, sampling=sampling, share_prefix=False) for it in prompts]
    for reader in [engine.submit(job) for job in jobs]:
        with reader:
            for _ in reader:
                pass


def compare(n_clients: int, rounds: int, n_tokens: int, kernels: str) -> None:
    ratios, clocks = list[float](), list[float]()
    with opened(False, kernels) as own, opened(True, kernels) as shared:
        for number in range(rounds + 1):
            seconds: dict[Engine, tuple[float, float]] = {}
            for engine in (own, shared) if number % 2 else (shared, own):
                prompts = [prompt(60, 1000 * number + client) for client in range(n_clients)]
                began = time.process_time(), time.monotonic()
                serve(engine, prompts, n_tokens)
                seconds[engine] = time.process_time() - began[0], time.monotonic() - began[1]
            if number:  # the first one warms up
                ratios.append(seconds[shared][0] / seconds[own][0])
                clocks.append(seconds[shared][1] / seconds[own][1])
    print(
        f"{n_clients} clients: processor time of the shared context {statistics.median(ratios):.2f} times that of own "
        f"ones ({min(ratios):.2f} to {max(ratios):.2f}), wall time {statistics.median(clocks):.2f} times; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
