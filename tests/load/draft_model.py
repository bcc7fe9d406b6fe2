"""A model with a draft model, and without: `python -m tests.load.draft_model [--rounds N]`.

The model is SmolLM2 with layers behind its own that change nothing: their outputs are zero. So it says what SmolLM2
says, at several times the cost, and SmolLM2 itself is its draft. Prints the tokens a second of one client, and of
eight, of both servers in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.load.process import Server, serving
from tests.support.engines import packaged_model
from tests.support.padded_model import write_padded

N_TOKENS = 100  # of an answer
PATIENCE = 300.0  # seconds
PROMPTS = (
    "Once upon a time, in a small village by the sea,", "The history of bread begins", "Water boils when",
    "A letter to my grandmother:\n", "The three most important rules of chess are", "In the year 2150,",
    "How to plant a tree:\n1.", "Music is",
)  # fmt: skip


def tokens_per_s(server: Server, clients: int, temperature: float) -> float:
    """Asks each of so many clients for some answers; returns what they had of tokens in a second."""

    def ask(client: int) -> int:
        n_tokens = 0
        for turn in range(3):
            prompt = PROMPTS[(client + turn) % len(PROMPTS)]
            asked = {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": temperature, "seed": 1}
            body = json.dumps(asked | {"ignore_eos": True}).encode()
            request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                n_tokens += json.loads(answer.read())["usage"]["completion_tokens"]
        return n_tokens

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        n_tokens = sum(pool.map(ask, range(clients)))
    return n_tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=4, help="layers of the model, as many times SmolLM2's")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--temperature", type=float, default=0)
    options = parser.parse_args()
    draft = Path(packaged_model())
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_servers:
        model = write_padded(draft, Path(folder) / "padded.gguf", options.times)
        common = {"MODEL": str(model), "SLOTS": "8", "CTX": "1024"}
        settings = {"without": common, "with": common | {"MODEL_DRAFT": str(draft)}}
        servers = {name: open_servers.enter_context(serving(chosen)) for name, chosen in settings.items()}
        for clients in options.clients:
            seen: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    seen[name].append(tokens_per_s(server, clients, options.temperature))
            for name, values in seen.items():
                median = statistics.median(values)
                print(f"{clients} clients, {name}: {median:.1f} tokens/s ({min(values):.1f} to {max(values):.1f})")
            ratio = statistics.median(b / a for a, b in zip(*seen.values(), strict=True))
            print(f"{clients} clients: {ratio:.2f} times, in the median of the rounds", flush=True)


if __name__ == "__main__":
    main()
