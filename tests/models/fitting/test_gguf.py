"""What a file's head tells about its model."""

import os
import struct

import pytest

from corosrv.models.fitting import gguf
from corosrv.models.fitting.room import CacheTypes
from tests.support.gguf_heads import PAIRS, head, number, numbers, text


@pytest.fixture
def write(tmp_path):
    def write(content: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return str(path)

    return write


def test_keys_and_values_are_counted_from_heads_and_layers(write):
    facts = gguf.read(write(head(*PAIRS)))

    # 3 layers of 2 heads, each 8 wide in keys and in values, of 2 bytes.
    assert (facts.cache.token_bytes(CacheTypes()), facts.n_ctx_train, facts.n_embd) == (3 * 2 * 16 * 2, 2048, 64)


def test_widths_that_the_file_gives_count(write):
    widths = [number("llama.attention.key_length", 32), number("llama.attention.value_length", 16)]

    assert gguf.read(write(head(*PAIRS, *widths))).cache.token_bytes(CacheTypes()) == 3 * 2 * 48 * 2


def test_heads_may_differ_from_layer_to_layer(write):
    pairs = [*PAIRS[:4], numbers("llama.attention.head_count_kv", [2, 0, 4])]

    assert gguf.read(write(head(*pairs))).cache.token_bytes(CacheTypes()) == 6 * 16 * 2


def test_the_vocabulary_is_not_read(write):
    assert gguf.read(write(head(*PAIRS, text("tokenizer.ggml.tokens")))) is not None


@pytest.mark.parametrize("length", range(0, 260, 7))
def test_a_file_that_ends_early_says_nothing(write, length):
    assert gguf.read(write(head(*PAIRS)[:length])) is None


@pytest.mark.parametrize(
    "content",
    [
        b"no GGUF at all, but long enough to be read",
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63) + struct.pack("<Q", 2**62),
        head(text("a") + struct.pack("<IIQ", 9, 9, 1)),
        head(text("a") + struct.pack("<IIQ", 9, 4, 2**60)),
        head(text("a") + struct.pack("<I", 77)),
    ],
)
def test_a_hostile_file_says_nothing(write, content):
    assert gguf.read(write(content)) is None


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    assert gguf.read(str(fifo)) is None
    assert gguf.read("/no/such/file") is None
    assert gguf.read(str(tmp_path)) is None


def test_the_tokens_of_the_vocabulary_are_counted(write):
    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 49152)

    assert gguf.read(write(head(*PAIRS, tokens))).n_vocab == 49152


def test_all_files_of_a_split_model_count(tmp_path):
    for part in (1, 2, 3):
        (tmp_path / f"large-0000{part}-of-00003.gguf").write_bytes(head(*PAIRS) + bytes(part * 1000))

    facts = gguf.read(str(tmp_path / "large-00001-of-00003.gguf"))

    assert facts.size == 3 * len(head(*PAIRS)) + 6000
