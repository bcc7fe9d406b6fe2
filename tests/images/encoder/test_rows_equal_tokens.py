"""Rows of the model's token table that came through an encoder process and its pool, in place of the tokens."""

import pytest

from corosrv.contracts.jobs import Job, Pieces, Rows, Sampling, Tokens
from corosrv.images.transfer.messages import TransferMeta
from tests.images.encoder.pool import HandPool, TokenDriver, geometry
from tests.support import gguf, projector
from tests.support.engines import opened, read_all, text_of

N_EMBD, BLOCK_ROWS = 32, 4
IDS = tuple(3 + (7 * place * place + 11 * place) % 250 for place in range(70))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory):
    return str(projector.write_mlp(tmp_path_factory.mktemp("projector") / "mlp.gguf", N_EMBD))


@pytest.fixture(scope="module")
def engine(model):
    with opened(model=model, slots=1, ctx=256) as engine:
        yield engine


def transfer(driver: TokenDriver, pool: HandPool, ids: tuple[int, ...]) -> bytes:
    """The rows of these tokens, in as many rounds as the pool makes of them."""
    driver.greet(pool, N_EMBD)
    driver.answer()
    driver.open_tokens(1, ids)
    meta = driver.answer()
    assert isinstance(meta, TransferMeta)
    blocks = tuple(range(pool.geometry.n_blocks))
    content, n_received = b"", 0
    while n_received < meta.total:
        gen = n_received // (len(blocks) * BLOCK_ROWS) + 1
        driver.grant(pool, 1, gen, n_received, blocks)
        n_received += driver.answer().n
        content += b"".join(map(pool.row_bytes, blocks))
    return content


def told(engine, prompt):
    """The text of a greedy answer, and every token with the likelihoods that came with it."""
    chunks = read_all(engine.submit(Job((prompt,), max_tokens=12, sampling=Sampling(temperature=0, n_probs=20))))
    return text_of(chunks), [(token.id, token.logprob, token.top) for chunk in chunks for token in chunk.tokens]


@pytest.mark.parametrize("n_blocks", [1, 2, 64])
def test_rows_equal_tokens(engine, model, mmproj, n_blocks):
    pool, driver = HandPool(geometry(n_blocks, BLOCK_ROWS, N_EMBD)), TokenDriver(model, mmproj)
    try:
        content = transfer(driver, pool, IDS)
    finally:
        driver.close()
        pool.close()

    text, tokens = told(engine, Pieces((Rows.of_data(content, N_EMBD),)))

    assert len(content) == 4 * N_EMBD * len(IDS)
    assert (text, tokens) == told(engine, Tokens(IDS))
    assert len(tokens) == 12
