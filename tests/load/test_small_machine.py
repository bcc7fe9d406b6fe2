"""The parts of the load on a small machine: its random model, and its cgroup."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.load.memory_cgroup import limited_to
from tests.support.engines import job, opened, read_all
from tests.support.random_model import DecoderShape, write_random_model

pytestmark = pytest.mark.slow

SMALL = DecoderShape(width=256, inner=512, layers=2, heads=4, kv_heads=2, words=512, context=512)
LIMIT = 64 * 2**20


def test_a_random_model_has_the_weights_of_its_shape_and_generates(tmp_path: Path) -> None:
    path = write_random_model(tmp_path / "random.gguf", SMALL)

    with opened(model=str(path), slots=2, ctx=256) as engine:
        meta = engine.card("").meta
        n_tokens = sum(chunk.n_tokens for chunk in read_all(engine.submit(job("Hello", max_tokens=4))))

    assert (meta["n_params"], meta["ftype"]) == (SMALL.n_weights, "Q4_K - Medium")
    assert 1 <= n_tokens <= 4


def test_a_process_in_a_memory_cgroup_sees_its_limit_and_leaves_no_folder() -> None:
    look = "from corosrv.models.fitting.room import read_room; room = read_room(); print(room.free, room.source)"
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(limited_to(LIMIT))
        except OSError as error:
            pytest.skip(f"no memory cgroup can be made here: {error}")
        command = [sys.executable, "-c", look]
        seen = subprocess.run(command, preexec_fn=cgroup.join, capture_output=True, timeout=60, check=True).stdout
        peak, n_killed = cgroup.peak, cgroup.n_killed

    free, _, source = seen.decode().strip().partition(" ")
    assert (source, n_killed) == ("left by the cgroup's limit", 0)
    assert LIMIT / 2 < int(free) < LIMIT
    assert 0 < peak <= LIMIT
    assert not cgroup.folder.exists()
