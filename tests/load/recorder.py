"""Random jobs that are recorded and replayed: `python -m tests.load.recorder [--jobs 10000] [--model PATH] [--kill]`.

Prints how many steps and texts the replay had, how many of them differ from the recording, and what recording takes.
`--kill` ends the engine's process by a signal in the midst, and replays what it has left. Ends with 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
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
WORDS = "the boat of a river that nobody counts carries its small sea to where waves are and".split()
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


def record_and_kill(settings: ModelSettings, n_jobs: int, seed: int) -> None:
    """Has a child record, and end in the midst."""
    if (child := os.fork()) == 0:
        record_jobs(settings, n_jobs, seed, kill_after=n_jobs // 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--model", default="synthetic:?tokens_per_s=0&length=30")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speculation", type=int, default=0)
    parser.add_argument("--kill", action="store_true", help="end the process that records in the midst")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "jobs.rec")
        settings = settings_of(path, arguments.model, speculation=arguments.speculation, record_bytes=1 << 30)
        if arguments.kill:
            record_and_kill(settings, arguments.jobs, arguments.seed)
        else:
            took = record_jobs(settings, arguments.jobs, arguments.seed)
            print(f"{arguments.jobs} jobs recorded in {took:.1f} s: {Path(path).stat().st_size:,} bytes")
        began = time.monotonic()
        replayed: Replayed = replay_file(path, print)
        print(f"{replayed}, in {time.monotonic() - began:.1f} s")
    sys.exit(0 if replayed.is_same and replayed.steps > 0 else 1)


if __name__ == "__main__":
    main()
