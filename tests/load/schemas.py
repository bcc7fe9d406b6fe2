"""Measures what a JSON schema costs: `python -m tests.load.schemas`.

As many streams as there are slots, all at once, with a schema and without one, in turn. The schema asks for more than
fits, so that both write the same number of tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time

from corosrv.contracts.jobs import Job, Messages, Sampling
from corosrv.contracts.settings import load
from corosrv.formats import structured
from corosrv.models.engine import Engine

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Paris", "Oslo", "Lima", "Tokyo"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
    },
    "required": ["name", "age", "city", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 40, "maxItems": 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args()
    grammar = structured.grammar_of(SCHEMA, "schema")
    engine = Engine(load({"slots": options.streams}))
    engine.open()
    try:
        speeds: dict[str, list[float]] = {"": [], grammar: []}
        for number in range(options.rounds + 1):
            for text, seen in speeds.items():
                speed = tokens_per_s(engine, options, text)
                if number > 0:  # the first round only warms up
                    seen.append(speed)
        free, held = (statistics.median(seen) for seen in speeds.values())
        print(f"{options.streams} streams of {options.tokens} tokens, medians of {options.rounds} rounds: "
              f"{free:.0f} tokens/s free, {held:.0f} with a schema, ratio {held / free:.2f}")  # fmt: skip
    finally:
        engine.close()


def tokens_per_s(engine: Engine, options: argparse.Namespace, grammar: str) -> float:
    """All streams at once, until the last one has ended."""
    began = time.monotonic()
    readers = [
        engine.submit(
            Job(
                (Messages(({"role": "user", "content": f"List the people of office {number} as JSON."},)),),
                max_tokens=options.tokens,
                sampling=Sampling(temperature=options.temperature, seed=number, ignore_eos=True, grammar=grammar),
            )
        )
        for number in range(options.streams)
    ]
    n_tokens = 0
    for reader in readers:
        with reader:
            n_tokens += sum(chunk.n_tokens for chunk in reader)
    return n_tokens / (time.monotonic() - began)


if __name__ == "__main__":
    main()
