"""The seeds of the suite, and the planted bugs, each in a process of its own that nothing else has run in."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.simulation.__main__ import WORLDS
from tests.simulation.bugs import BUGS

AT_ONCE = 5  # seeds of one test
SEEDS = {"loop": 40, "pool": 20, "workers": 15, "fronts": 5, "engines": 5}
HAS_REDIS = all(map(shutil.which, ("redis-server", "cc"))) and importlib.util.find_spec("redis") is not None


@pytest.fixture(autouse=True)
def _world_that_can_run(request: pytest.FixtureRequest) -> None:
    values = getattr(request.node, "callspec", None)
    world = values and (values.params.get("world") or BUGS[values.params["name"]].world)
    if world == "fronts" and not HAS_REDIS:
        pytest.skip("the world of fronts needs redis-server, redis-py and a C compiler")


def simulate(*arguments: str, **environment: str) -> tuple[int, str]:
    """Runs the command; returns its status and what it has printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800,
        check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_run(world):
    runs = [simulate("--world", world, "--seed", "3", "--hours", "0.05", PYTHONHASHSEED=seed) for seed in "12"]

    digests = [re.search("digest ([0-9a-f]{16})", words)[1] for _, words in runs]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("world", WORLDS)
def test_another_seed_gives_another_run(world):
    status, words = simulate("--world", world, "--seeds", "2", "--hours", "0.01")

    assert status == 0, words
    assert len(set(re.findall("digest ([0-9a-f]{16})", words))) == 2


def test_a_run_ends_at_the_event_that_is_asked_for_and_prints_what_came_before():
    status, words = simulate("--seed", "3", "--until", "40")

    assert status == 0, words
    assert re.search("\n +40 +[0-9.]+  .*\n$", words)


@pytest.mark.parametrize(
    ("world", "first"), [(world, first) for world in SEEDS for first in range(1, SEEDS[world] + 1, AT_ONCE)]
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_seed_violates_what_must_hold(world, first):
    n_seeds = min(AT_ONCE, SEEDS[world])

    status, words = simulate("--world", world, "--seed", str(first), "--seeds", str(n_seeds))

    assert status == 0, words


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_replaces_words_that_stand_once(name):
    source = BUGS[name].source()

    if BUGS[name].world != "loop":
        compile(source, "planted", "exec")


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_planted_bug_is_found_by_at_most_20_seeds(name):
    bug = BUGS[name]

    seeds = ("--seed", str(bug.seed), "--seeds", "20", "--often", bug.often)
    status, words = simulate("--world", bug.world, *seeds, "--bug", name)

    assert status == 1, words
    assert "VIOLATION" in words
