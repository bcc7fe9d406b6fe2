"""Rows of a model file's token table."""

import struct

import pytest

from corosrv.encoder.encoding import EncodingFailed
from corosrv.encoder.table import TokenTable
from corosrv.errors import LoadError
from corosrv.transfer.messages import RowSegment
from tests.support import gguf

N_EMBD, N_TOKENS = 32, 3
Q8_0 = 8  # ggml's type: blocks of 32 whole numbers, behind a factor of 16 bits
KEYS = {"general.architecture": "llama"}


def write_quantized(path) -> str:
    """A table whose token `t` has the numbers -16 to 15, times t + 1, times a half."""
    row = struct.pack("<e32b", 0.5, *range(-16, 16))
    rows = b"".join(struct.pack("<e", 0.5 * (token + 1)) + row[2:] for token in range(N_TOKENS))
    tensor = gguf.BlockTensor(Q8_0, (N_EMBD, N_TOKENS), len(rows), lambda: iter([rows]))
    gguf.write_blocks(path, KEYS, {"token_embd.weight": tensor})
    return str(path)


@pytest.fixture(params=["float", "quantized"])
def table(request, tmp_path):
    if request.param == "float":
        numbers = [0.5 * (token + 1) * number for token in range(N_TOKENS) for number in range(-16, 16)]
        tensors = {"other.weight": ((7,), range(7)), "token_embd.weight": ((N_EMBD, N_TOKENS), numbers)}
        path = str(gguf.write(tmp_path / "model.gguf", KEYS, tensors))
    else:
        path = write_quantized(tmp_path / "model.gguf")
    table = TokenTable(path)
    yield table
    table.close()


def test_each_token_has_the_row_that_the_file_has_for_it(table):
    encoding = table.encode([2, 0])

    assert (encoding.segments, encoding.n_embd, encoding.total) == ((RowSegment(2),), N_EMBD, 2)
    assert list(encoding.rows.cast("f")) == [factor * number for factor in (1.5, 0.5) for number in range(-16, 16)]
    assert table.n_tokens == N_TOKENS


@pytest.mark.parametrize(
    ("ids", "code", "words"),
    [
        ([], "no_rows", "no tokens were named"),
        ([0, 3], "bad_token", "there is no token 3; the model has 3"),
        ([-1], "bad_token", "there is no token -1"),
    ],
)
def test_what_is_no_token_has_no_rows(table, ids, code, words):
    with pytest.raises(EncodingFailed, match=words) as failed:
        table.encode(ids)
    assert failed.value.code == code


def test_a_table_that_is_closed_reads_nothing_more(table):
    table.close()
    table.close()

    with pytest.raises(ValueError, match="closed"):
        table.encode([1])


def test_a_model_whose_table_is_elsewhere_is_refused_by_its_name(tmp_path):
    path = gguf.write(tmp_path / "part-2.gguf", KEYS, {"output.weight": ((4, 4), range(16))})

    with pytest.raises(LoadError, match=r"the model .*part-2\.gguf has no token table in its first file"):
        TokenTable(str(path))


def test_a_model_file_that_was_cut_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write_quantized(path)
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(LoadError, match="was cut"):
        TokenTable(str(path))
