"""The example of rollouts, run against a real server."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.serve.server import Server, servers

SCRIPT = Path(__file__).parent.parent.parent / "deploy" / "rollout" / "oversample.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four slots, so that some groups run while others wait."""
    folder = tmp_path_factory.mktemp("rollout")
    with servers(folder, folder) as started:
        yield started.start(slots=4, model="synthetic:?tokens_per_s=400", ctx=4096)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("oversample", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["oversample"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["oversample"]


def test_no_prompt_is_lost_or_answered_twice_over_several_steps(server: Server, example: ModuleType):
    prompts = (f"prompt {number}" for number in itertools.count())
    collector = example.Collector(prompts, 2, 40, url=f"http://127.0.0.1:{server.port}", concurrency=4)

    groups = [group for _ in range(4) for group in collector.collect(2, over_sampling=2.0)]

    everything = [*groups, *collector.complete, *collector.waiting]
    assert len(groups) == 8
    assert sorted(group.prompt for group in everything) == sorted({group.prompt for group in everything})
    assert all(sample.finish and sample.text for group in groups for sample in group.samples)
    assert all(sample.n_tokens == len(sample.logprobs) for group in everything for sample in group.samples)


def test_a_partial_group_goes_on_where_it_was_cut_off(server: Server, example: ModuleType):
    sample = example.Sample("so far", 3, [-1.0] * 3)
    collector = example.Collector(iter(()), 1, 5, url=f"http://127.0.0.1:{server.port}")
    collector.waiting.append(example.SampleGroup("begin ", [sample, example.Sample("done", 5, [], "stop")]))

    (group,) = collector.collect(1)

    assert group.samples[0].text.startswith("so far")
    assert group.samples[0].n_tokens == 5
    assert group.samples[1].text == "done"


def test_the_script_runs_as_its_readme_says(server: Server):
    arguments = ["--url", f"http://127.0.0.1:{server.port}", "--steps", "2", "--groups", "2", "--n", "2"]

    output = subprocess.run(
        [sys.executable, SCRIPT, *arguments, "--max-tokens", "10"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    assert re.findall(r"^step (\d): (\d) groups", output, re.MULTILINE) == [("1", "2"), ("2", "2")]
