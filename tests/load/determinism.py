"""Measures the cost of COROSRV_DETERMINISTIC=1 by format: `python -m tests.load.determinism [--formats Q8_0 Q4_K_M]`.

The packaged model is written in each format. An engine with one compute thread and the setting, and one without it, in
turn read a long prompt and decode for one client and for twelve; the ratio is that of their processor time, which
other work on the machine disturbs less than the clock's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from corosrv.contracts.jobs import Job, Sampling, Text
from corosrv.contracts.settings import load
from corosrv.models.engine import Engine
from tests.support.architectures import quantize
from tests.support.engines import packaged_model

FORMATS = ("Q4_1", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")
LONG = "The ship left the harbour at dawn, and nobody on board knew where the captain meant to go. " * 12
TOKENS = 24
LOADS: Mapping[str, Callable[[Engine], None]] = {
    "a prompt of 250 tokens": lambda engine: decode(engine, LONG, 1, 1),
    "1 client": lambda engine: decode(engine, "Water", 1, TOKENS),
    "12 clients": lambda engine: decode(engine, "Water", 12, TOKENS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.formats:
        with tempfile.TemporaryDirectory() as folder:
            model = quantize(Path(packaged_model()), Path(folder), [name])[name]
            ratios = compare(str(model), options.rounds)
        print(f"{name:8}" + "; ".join(f"{load}: {ratio:.2f} times" for load, ratio in ratios.items()), flush=True)


def compare(model: str, rounds: int) -> dict[str, float]:
    """How many times the processor time of an engine as it comes a deterministic one takes, by load."""
    engines = [
        Engine(load({"model": model, "slots": 12, "ctx": 512, "threads": 1, "deterministic": is_deterministic}))
        for is_deterministic in (False, True)
    ]
    for engine in engines:
        engine.open()
    try:
        ratios: dict[str, list[float]] = {name: [] for name in LOADS}
        for _ in range(rounds):
            for name, run in LOADS.items():
                usual, deterministic = (seconds(run, engine) for engine in engines)
                ratios[name].append(deterministic / usual)
        return {name: statistics.median(values) for name, values in ratios.items()}
    finally:
        for engine in engines:
            engine.close()


def seconds(run: Callable[[Engine], None], engine: Engine) -> float:
    """Processor time of this process, in which but one engine is at work."""
    began = time.process_time()
    run(engine)
    return time.process_time() - began


def decode(engine: Engine, prompt: str, clients: int, n_tokens: int) -> None:
    sampling = Sampling(temperature=0, ignore_eos=True)
    work = Job((Text(prompt),), max_tokens=n_tokens, sampling=sampling, share_prefix=False)
    for reader in [engine.submit(work) for _ in range(clients)]:
        with reader:
            for _ in reader:
                pass


if __name__ == "__main__":
    main()
