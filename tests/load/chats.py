"""Short chats on the synthetic model: `python -m tests.load.chats [--seconds 5] [--rounds 3] [--profile]`.

32 connections ask for one token each, again and again. Prints how many chats a second are answered, and the processor
time that one takes of the thread that serves HTTP. --profile: where the server spends its time (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics

from tests.load.callers import run
from tests.load.clients import request
from tests.load.predictions import profile
from tests.load.process import serving, usage

N_CONNECTIONS = 32
BODY = {"messages": [{"role": "user", "content": "Say one word."}], "max_tokens": 1}
CHAT = request("/v1/chat/completions", json.dumps(BODY).encode())
SETTINGS = {"MODEL": "synthetic:?tokens_per_s=0", "SLOTS": str(N_CONNECTIONS), "CTX": "512"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    costs = []
    with serving(SETTINGS) as server:
        run(server.address, CHAT, N_CONNECTIONS, 1.0)  # warm
        with profile(server.worker_pid, arguments.seconds) if arguments.profile else contextlib.nullcontext():
            for _ in range(arguments.rounds):
                before = usage(server.worker_pid)
                outcome = run(server.address, CHAT, N_CONNECTIONS, arguments.seconds)
                after, n_chats = usage(server.worker_pid), len(outcome.times)
                costs.append((after.main_cpu - before.main_cpu) / n_chats * 1e3)
                print(
                    f"{n_chats / arguments.seconds:.0f} chats/s, p50 {outcome.percentile(50):.1f} ms, "
                    f"p99 {outcome.percentile(99):.1f} ms, {len(outcome.refusals)} refused; "
                    f"{costs[-1]:.3f} ms of the front's thread for each",
                    flush=True,
                )
    print(f"median: {statistics.median(costs):.3f} ms of the front's thread for each chat")


if __name__ == "__main__":
    main()
