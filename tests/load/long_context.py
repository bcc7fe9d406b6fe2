"""One client with 32,000 tokens beside 31 idle slots: `python -m tests.load.long_context [--tokens 32000]`.

Serves a model twice, with the same slots of the same context: first with a context for each slot, all filled by as many
clients; then with one context for all slots, which one client fills alone, and after it as many clients as there are
slots, all at once. Prints the most memory that each server had, and what the clients waited for. The model has random
weights and says that it was trained for 131,072 tokens; `--model` names another one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.load.completions import Answer, complete_all
from tests.load.process import Server, peak_memory, serving
from tests.support.random_model import DecoderShape, write_random_model

# Keeps 4 kB of each token, 134 MB of 32,768, and computes little.
SHAPE = DecoderShape(width=512, inner=1024, layers=2, heads=8, kv_heads=8, words=4096, context=131_072)
ANSWER = 16  # tokens
FIRST_WORD = 300  # tokens from here on are words


@dataclass(frozen=True, slots=True)
class Load:
    """The slots of both servers, the tokens of each, and those of the long prompt."""

    slots: int = 32
    context: int = 1024
    tokens: int = 32_000
    timeout: float = 900.0  # seconds until an answer

    def prompt(self, n_tokens: int, first: int) -> list[int]:
        """Returns tokens that begin like those of no other `first`."""
        return [FIRST_WORD + (first * 31 + 17 * i * i + i) % 211 for i in range(n_tokens)]

    def short_prompts(self) -> list[list[int]]:
        """Returns a prompt for each slot, which fills its part of the context."""
        return [self.prompt(self.context - ANSWER, number) for number in range(self.slots)]


@dataclass(frozen=True, slots=True)
class Result:
    """The most memory of both servers in bytes, and their answers."""

    own_bytes: int
    shared_bytes: int  # after the long prompt
    shared_bytes_later: int  # after the short ones that came then
    own: list[Answer]
    long: Answer
    later: list[Answer]

    @property
    def ratio(self) -> float:
        return self.shared_bytes / self.own_bytes


def main() -> None:
    default = Load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=default.slots)
    parser.add_argument("--context", type=int, default=default.context, help="tokens of each slot")
    parser.add_argument("--tokens", type=int, default=default.tokens, help="of the long prompt")
    parser.add_argument("--timeout", type=float, default=default.timeout, help="seconds until an answer")
    parser.add_argument("--model", type=Path, help="another model")
    options = parser.parse_args()
    load = Load(options.slots, options.context, options.tokens, options.timeout)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write_random_model(Path(folder) / "random.gguf", SHAPE)
        result = run(load, model)
    short = f"{load.slots} clients with {load.context - ANSWER} tokens"
    rows = {
        f"own contexts, {short}": _words(result.own_bytes, result.own),
        f"shared context, 1 client with {load.tokens} tokens": _words(result.shared_bytes, [result.long]),
        f"shared context, {short} after it": _words(result.shared_bytes_later, result.later),
        "memory of the long prompt, beside own contexts": f"{result.ratio:.3f} times",
        "load of the machine": f"{os.getloadavg()[0]:.1f}",
    }
    for name, value in rows.items():
        print(f"{name:52} {value}", flush=True)


def run(load: Load, model: Path) -> Result:
    """Puts both servers under load, one after the other. Raises where a client gets no answer."""
    # Without copies of computed prompts, so that contexts alone are compared.
    settings = {"MODEL": str(model), "SLOTS": str(load.slots), "CTX": str(load.context), "CACHE_BYTES": "0"}
    with serving(settings) as server:
        own = _answers(server, load.short_prompts(), load)
        own_bytes = peak_memory(server.worker_pid)
    with serving({**settings, "KV_UNIFIED": "1"}) as server:
        [long] = _answers(server, [load.prompt(load.tokens, load.slots)], load)
        shared_bytes = peak_memory(server.worker_pid)
        later = _answers(server, load.short_prompts(), load)
        return Result(own_bytes, shared_bytes, peak_memory(server.worker_pid), own, long, later)


def _answers(server: Server, prompts: list[list[int]], load: Load) -> list[Answer]:
    return complete_all(server, prompts, ANSWER, load.timeout)


def _words(size: int, answers: list[Answer]) -> str:
    last = max(answer.seconds for answer in answers)
    return f"at most {size / 2**20:.0f} MiB, {len(answers)} answered, the last one after {last:.1f} s"


if __name__ == "__main__":
    main()
