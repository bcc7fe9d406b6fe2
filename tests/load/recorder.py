"""Jobs, recorded and replayed: `python -m tests.load.recorder [--jobs 10000] [--model PATH] [--kill] [--cost 5]`.

Prints how many steps and texts the replay had, how many of them differ from the recording, and what recording takes.
`--kill` ends the engine's process by a signal in the midst, and replays what it has left. Ends with 1 if anything
differs. `--cost` measures instead, in turn with and without a recording, the processor's time for a token with 32
clients: other programs disturb it less than they do the clock's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gevent
from gevent.pool import Pool

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import AnyJob, EmbedJob, Job, Sampling, Text
from corosrv.contracts.jobs.terms import Terms
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from corosrv.models.replay import Replayed, replay_file

GRAMMARS = ('root ::= ("yes" | "no") " " [a-z]+ "."', 'root ::= "[" [0-9]+ ("," [0-9]+)* "]"')
CLIENTS = 48
COST_TOKENS = 100  # of each stream whose cost is measured
WORDS = [
    "the",
    "boat",
    "of",
    "a",
    "river",
    "that",
    "nobody",
    "counts",
    "carries",
    "its",
    "small",
    "sea",
    "to",
    "where",
    "waves",
    "are",
    "and",
]
TIMEOUT = 120.0  # seconds for a client to hear of its job


def random_job(chance: random.Random, can_embed: bool) -> AnyJob:
    prompt = Text(" ".join(chance.choice(WORDS) for _ in range(chance.choice((2, 8, 40, 120)))))
    terms = Terms(
        caller=chance.choice(("", "a", "b")),
        priority=chance.randint(1, 9),
        deadline=time.monotonic() + chance.random() if chance.random() < 0.03 else None,
    )
    if can_embed and chance.random() < 0.1:
        return EmbedJob((prompt,), terms=terms)
    sampling = Sampling(
        temperature=chance.choice((0.0, 0.7, 1.3)),
        seed=chance.randrange(2**32),
        grammar=chance.choice(GRAMMARS) if chance.random() < 0.1 else "",
        repeat_penalty=chance.choice((1.0, 1.2)),
        dry_multiplier=chance.choice((0.0, 0.0, 0.8)),
        mirostat=chance.choice((0, 0, 0, 2)),
        logit_bias=(("a", -1.0),) if chance.random() < 0.1 else (),
    )
    return Job(
        (prompt,),
        n=chance.choice((1, 1, 1, 1, 3)),
        max_tokens=chance.randint(0, 40),
        sampling=sampling,
        stop=("river",) if chance.random() < 0.2 else (),
        share_prefix=chance.random() < 0.9,
        stream=chance.random() < 0.5,
        terms=terms,
    )


def run_client(engine: Engine, seed: int, can_embed: bool) -> None:
    """Submits one job; reads it at once, slowly, or leaves it."""
    chance = random.Random(seed)
    try:
        reader = engine.submit(random_job(chance, can_embed))
    except CorosrvError as error:
        print(f"refused: {error}")
        return
    with reader:
        if chance.random() < 0.1:
            gevent.sleep(chance.random() / 50)
            return  # which cancels it
        is_slow = chance.random() < 0.1
        while reader.take(TIMEOUT):
            if is_slow:
                gevent.sleep(0.02)


def record_jobs(settings: ModelSettings, n_jobs: int, seed: int, kill_after: int = 0) -> float:
    """Lets clients submit jobs to an engine that records; returns the seconds that took."""
    engine = Engine(settings)
    engine.open()
    can_embed = "embeddings" in engine.models()[0].capabilities
    began = time.monotonic()
    clients = Pool(CLIENTS)
    for number in range(n_jobs):
        if kill_after and number == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        clients.wait_available()
        clients.spawn(run_client, engine, seed + number, can_embed)
    clients.join()
    took = time.monotonic() - began
    engine.close()
    return took


def settings_of(path: str, model: str, **chosen: object) -> ModelSettings:
    values = {"slots": 8, "ctx": 1024, "reader_bytes": 1024, "threads": 1, "model": model, "record": path, **chosen}
    return ModelSettings(**values)  # type: ignore[arg-type]


def record_and_kill(path: str, model: str, n_jobs: int, seed: int) -> None:
    """Has a process of its own record, and end in the midst by SIGKILL."""
    program = (
        "from tests.load.recorder import record_jobs, settings_of\n"
        f"record_jobs(settings_of({path!r}, {model!r}), {n_jobs}, {seed}, kill_after={n_jobs // 2})"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT, check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the process that recorded ended with {done.returncode}")


def print_cost(model: str, n_pairs: int) -> None:
    """Prints the ratio of the processor's time with a recording to that without one, of each pair and the median."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n_pairs):
            paths = ["", str(Path(folder) / f"{number}.rec")]
            ways = paths if number % 2 == 0 else paths[::-1]
            times = {path: token_time(model, path) for path in ways}
            plain, recorded = (times[path] for path in paths)
            ratios.append(recorded / plain)
            print(f"{plain * 1e6:.1f} us a token, recorded {recorded * 1e6:.1f} us: {ratios[-1]:.4f}", flush=True)
    print(f"median of {n_pairs}: {statistics.median(ratios):.4f}")


def token_time(model: str, path: str) -> float:
    """Returns the seconds of processor time that a token of 32 streams took."""
    engine = Engine(settings_of(path, model, slots=32, reader_bytes=262_144))
    engine.open()
    sampling = Sampling(temperature=0.7, seed=1, ignore_eos=True)

    def read(client: int) -> None:
        with engine.submit(Job((Text(f"{client} says that"),), max_tokens=COST_TOKENS, sampling=sampling)) as reader:
            while reader.take(TIMEOUT):
                pass

    began = time.process_time()
    gevent.joinall([gevent.spawn(read, client) for client in range(32)], raise_error=True)
    took = time.process_time() - began
    stats = engine.stats()
    assert stats is not None
    engine.close()
    return took / stats.generated_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--model", default="synthetic:?tokens_per_s=0&length=30")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speculation", type=int, default=0)
    parser.add_argument("--kill", action="store_true", help="end the process that records in the midst")
    parser.add_argument("--cost", type=int, default=0, metavar="PAIRS", help="measure this many pairs")
    arguments = parser.parse_args()
    if arguments.cost:
        return print_cost(arguments.model, arguments.cost)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "jobs.rec")
        settings = settings_of(path, arguments.model, speculation=arguments.speculation, record_bytes=1 << 30)
        if arguments.kill:
            record_and_kill(path, arguments.model, arguments.jobs, arguments.seed)
        else:
            took = record_jobs(settings, arguments.jobs, arguments.seed)
            print(f"{arguments.jobs} jobs recorded in {took:.1f} s: {Path(path).stat().st_size:,} bytes")
        began = time.monotonic()
        replayed: Replayed = replay_file(path, print)
        print(f"{replayed}, in {time.monotonic() - began:.1f} s")
    sys.exit(0 if replayed.is_same and replayed.steps > 0 else 1)


if __name__ == "__main__":
    main()
