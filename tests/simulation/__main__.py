"""Runs worlds by their seeds: `python -m tests.simulation --world pool --seed 7 --hours 2 [--until EVENT]`.

Each seed runs in a process of its own, and prints one line; a violation prints the last events before it, and ends the
command with 1.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulation import bugs, loop

if TYPE_CHECKING:  # it imports the product, which must find the clock and the bug in place
    from tests.simulation.world import Run, World

MINUTES = 5.0  # of virtual time, before the calm
NATIVE = bugs.ROOT / "tests" / "native"
BUILD_TIMEOUT = 600  # seconds, on a slow machine with nothing built yet
# "loop" is a program: tests/native/world.
WORLDS = {
    "loop": "",
    "pool": "PoolWorld",
    "workers": "WorkersWorld",
    "fronts": "FrontsWorld",
    "engines": "EnginesWorld",
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.world == "loop":
        return _run_native(options)
    loop.install()
    if options.bug:
        bugs.plant(options.bug)
    module = importlib.import_module(f"tests.simulation.{options.world}")
    world_class = getattr(module, WORLDS[options.world])
    for seed in range(options.seed, options.seed + options.seeds):
        run = _run_apart(world_class, seed, 60 * options.hours, options.until, options.often)
        print(
            f"{run.world} {run.seed}: {'VIOLATED' if run.violation else 'ok'}, {run.seconds / 60:.1f} min in "
            f"{run.cpu_seconds:.2f} s, {run.n_events} events, {run.n_turns} callbacks, digest {run.digest}, "
            f"{dict(run.outcomes)}",
            flush=True,
        )
        if run.violation or options.until:
            print("\n".join(run.last_events))
        if run.violation:
            print(f"{run.world} {run.seed}: {run.violation}")
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Runs a world from a seed.")
    parser.add_argument("--world", choices=sorted(WORLDS), default="pool")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds run, one after the other")
    parser.add_argument("--hours", type=float, default=MINUTES / 60, help="virtual hours before the calm")
    parser.add_argument("--until", default="", help="the number of an event, or words of one, after which it ends")
    parser.add_argument("--often", default="", help="a fate that half of the processes have")
    parser.add_argument("--bug", default="", help="a planted bug (tests/simulation/bugs.py), by its name")
    return parser


def _run_native(options: argparse.Namespace) -> int:
    """Runs the world of the native decode loop, built with the bug that is asked for. Returns its exit status."""
    target, planted = "build/world/world", ""
    if options.bug:
        bug = bugs.BUGS[options.bug]
        folder = NATIVE / "build" / "bugs" / options.bug.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "planted.cpp").write_text(bug.source())
        target, planted = f"{folder.relative_to(NATIVE)}/world", bug.module
    make = ["make", "--silent", "-C", str(NATIVE), f"--jobs={os.cpu_count() or 1}", target, f"PLANTED={planted}"]
    with open(NATIVE / "Makefile") as one_at_a_time:  # tests may run side by side
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        subprocess.run(make, check=True, timeout=BUILD_TIMEOUT)
    arguments = (options.seed, options.seeds, 60 * options.hours, options.until)
    return subprocess.run([NATIVE / target, *map(str, arguments)], check=False).returncode


def _run_apart(world_class: type[World], seed: int, minutes: float, until: str, often: str) -> Run:
    """Runs a world in a fork of this process, which has imported everything and has no hub."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with open(writable, "wb") as pipe:
                pickle.dump(world_class(seed, until, often).run(minutes), pipe)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        run: Run = pickle.load(pipe)
    os.waitpid(pid, 0)
    return run


if __name__ == "__main__":
    sys.exit(main())
