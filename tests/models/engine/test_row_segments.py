"""Rows at positions of their own, in a model with M-RoPE and in one without: what is refused."""

import struct
from collections.abc import Iterator, Sequence

import pytest

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, Pieces, Rows, Sampling, Tokens
from corosrv.models.engine import Engine
from tests.support import gguf
from tests.support.engines import opened, read_all
from tests.support.token_rows import TokenRows, token_rows

LINE = ((0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0))

Positions = Sequence[tuple[int, int, int, int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(gguf.write_qwen2vl(tmp_path_factory.mktemp("model") / "tiny.gguf", context=512))


@pytest.fixture(scope="module")
def engine(model) -> Iterator[Engine]:
    with opened(model=model) as engine:
        yield engine


@pytest.fixture(scope="module")
def table(model) -> Iterator[TokenRows]:
    with token_rows(model) as rows:
        yield rows


def prompt(table: TokenRows, positions: Positions, n_positions: int) -> Pieces:
    packed = b"".join(struct.pack("<4i", *position) for position in positions)
    rows = Rows.of_data(table.data([70 + i for i in range(len(positions))]), table.width, n_positions=n_positions,
                        positions=packed)  # fmt: skip
    return Pieces((Tokens((65, 66)), rows, Tokens((67,))))


def told(engine: Engine, asked: Pieces) -> list[tuple[int, float | None]]:
    job = Job((asked,), max_tokens=6, sampling=Sampling(temperature=0, n_probs=0), share_prefix=False)
    return [(token.id, token.logprob) for chunk in read_all(engine.submit(job)) for token in chunk.tokens]


def test_rows_at_the_positions_of_tokens_say_what_the_tokens_say(engine: Engine, table: TokenRows):
    at_positions = prompt(table, tuple((place, place, place, 0) for place in range(3)), 3)
    as_rows = table.pieces(("tokens", (65, 66)), ("rows", (70, 71, 72)), ("tokens", (67,)))
    as_tokens = Pieces((Tokens((65, 66, 70, 71, 72, 67)),))

    expected = told(engine, as_tokens)
    for asked in (at_positions, as_rows):  # other batches, and so another rounding
        seen = told(engine, asked)
        assert [token for token, _ in seen] == [token for token, _ in expected]
        assert [logprob for _, logprob in seen] == pytest.approx([logprob for _, logprob in expected], abs=1e-5)


def test_an_image_is_read_at_its_places(engine: Engine, table: TokenRows):
    column = tuple((t, x, y, z) for t, y, x, z in LINE)

    assert told(engine, prompt(table, LINE, 3)) != told(engine, prompt(table, column, 3))
    assert told(engine, prompt(table, LINE, 3)) != told(engine, prompt(table, LINE, 1))


@pytest.mark.parametrize(
    ("positions", "n_positions", "words"),
    [
        (LINE, 0, "move by at least 1"),
        (LINE, 4, "one for each at most"),
        (((0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)), 3, "fall"),
        (((0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)), 2, "reach beyond"),
        (((-1, 0, 0, 0), *LINE[1:]), 3, "fall"),
        (((0, -1, 0, 0), *LINE[1:]), 3, "outside of its segment"),
        (((0, 0, 4, 0), *LINE[1:]), 3, "outside of its segment"),
    ],
    ids=["none", "too many", "falling", "beyond", "before", "negative", "far"],
)
def test_positions_that_a_slot_cannot_keep_are_refused(
    engine: Engine, table: TokenRows, positions: Positions, n_positions: int, words: str
):
    with pytest.raises(Refused, match=words):
        told(engine, prompt(table, positions, n_positions))


def test_a_model_without_mrope_takes_no_positions(tmp_path_factory):
    model = str(gguf.write_llama(tmp_path_factory.mktemp("llama") / "tiny.gguf"))
    with (
        opened(model=model, ctx=256) as engine,
        token_rows(model) as table,
        pytest.raises(NotSupported, match="no M-RoPE"),
    ):
        told(engine, prompt(table, LINE, 3))
