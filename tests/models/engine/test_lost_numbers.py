"""A sequence whose numbers grow beyond all bounds ends by itself, and leaves nothing of them to others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.contracts.jobs import Chunk, Finish
from corosrv.models.engine import Engine
from tests.support.architectures import write_mamba
from tests.support.engines import job, opened

LONG = "a b c d e f g h " * 20  # enough tokens for the state of this model to grow beyond what a float holds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mamba(tmp_path_factory.mktemp("models") / "growing-mamba.gguf", decay=30.0)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with opened(model=str(model), slots=2, ctx=1024) as engine:
        yield engine


def ask(engine: Engine, prompt: str) -> list[Chunk]:
    with engine.submit(job(prompt, max_tokens=3, share_prefix=False)) as reader:
        return list(reader)


def test_a_sequence_that_lost_its_numbers_leaves_none_to_those_after_it(engine: Engine) -> None:
    before = [chunk.text for chunk in ask(engine, "a")]

    failed = [ask(engine, LONG)[-1] for _ in range(2)]
    after = [ask(engine, "a") for _ in range(3)]

    assert [chunk.finish for chunk in failed] == [Finish.ERROR] * 2
    assert "not numbers" in failed[0].text
    assert [[chunk.text for chunk in chunks] for chunks in after] == [before] * 3
