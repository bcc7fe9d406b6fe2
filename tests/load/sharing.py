"""Measures what sharing a prompt's beginning saves, and whether it changes texts: `python -m tests.load.sharing`.

As many greedy requests as there are slots, all at once, with one long system prompt: first each computes all of it,
then they share. The same texts are then compared, request by request, with and without COROSRV_DETERMINISTIC.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from corosrv.contracts.jobs import Job, Messages, Sampling
from corosrv.contracts.settings import load
from corosrv.models.engine import Engine

SENTENCE = "You work in the office of a small shipping company, answer briefly, and say so when you do not know. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--sentences", type=int, default=18, help="in the shared prompt, of some 22 tokens each")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for is_deterministic in (False, True):
        with_settings(options, is_deterministic)


def with_settings(options: argparse.Namespace, is_deterministic: bool) -> None:
    engine = Engine(load({"slots": min(options.requests, 256), "deterministic": is_deterministic}))
    engine.open()
    try:
        prompts = [prompt(options.sentences, number) for number in range(options.requests)]
        n_shared = engine.vocabulary(None).count(prompt(options.sentences, 0))
        unshared, shared = [], []
        for _ in range(options.rounds):
            alone, seconds = answers(engine, prompts, options.tokens, share=False)
            unshared.append(seconds)
            engine_texts, seconds = answers(engine, prompts, options.tokens, share=True)
            shared.append(seconds)
        n_changed = sum(a != b for a, b in zip(alone, engine_texts, strict=True))
        print(
            f"{'deterministic' if is_deterministic else 'as it comes'}: {options.requests} requests, prompts of "
            f"{n_shared} tokens, {options.tokens} new ones: {statistics.median(unshared):.2f} s unshared, "
            f"{statistics.median(shared):.2f} s shared, ratio "
            f"{statistics.median(unshared) / statistics.median(shared):.1f}; {n_changed} texts changed",
            flush=True,
        )
    finally:
        engine.close()


def prompt(n_sentences: int, number: int) -> Messages:
    system = {"role": "system", "content": SENTENCE * n_sentences}
    question = {"role": "user", "content": f"Which cargo does ship number {number} carry, and where to?"}
    return Messages((system, question))


def answers(engine: Engine, prompts: Sequence[Messages], n_tokens: int, share: bool) -> tuple[list[str], float]:
    """The texts, and the seconds until the last one was there."""
    sampling = Sampling(temperature=0, ignore_eos=True)
    began = time.monotonic()
    readers = [
        engine.submit(Job((prompt,), max_tokens=n_tokens, sampling=sampling, share_prefix=share)) for prompt in prompts
    ]
    texts = []
    for reader in readers:
        with reader:
            texts.append("".join(chunk.text for chunk in reader))
    return texts, time.monotonic() - began


if __name__ == "__main__":
    main()
