"""What a file's head tells about its model."""

import os
import struct

import pytest

from corosrv.models.fitting import gguf
from corosrv.models.fitting.room import CacheTypes
from tests.support.gguf_heads import PAIRS, head, number, numbers, string, strings, text


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


# Texts, which stand behind the vocabulary.

VOCABULARY = [
    strings("tokenizer.ggml.tokens", ["<s>", "</s>", "a"]),
    numbers("tokenizer.ggml.token_type", [3, 3, 1]),
    strings("tokenizer.ggml.merges", []),
    number("tokenizer.ggml.bos_token_id", 0),
    number("tokenizer.ggml.eos_token_id", 1),
    string("tokenizer.chat_template", "{{ messages }}"),
]


def test_texts_are_found_behind_the_vocabulary(write):
    path = write(head(*PAIRS, number("llama.pooling_type", 4), *VOCABULARY))

    assert gguf.read_texts(path) == gguf.HeadTexts("{{ messages }}", "<s>", "</s>", 4)


def test_a_head_without_texts_has_none(write):
    assert gguf.read_texts(write(head(*PAIRS))) == gguf.HeadTexts()


def test_the_id_of_a_token_that_there_is_not_names_none(write):
    path = write(head(strings("tokenizer.ggml.tokens", ["a"]), number("tokenizer.ggml.bos_token_id", 1)))

    assert gguf.read_texts(path).bos == ""


@pytest.mark.parametrize("n_bytes", [0, 3, 30, 200, 300, 420])
def test_a_head_that_ends_early_has_no_texts(write, n_bytes: int):
    whole = head(*PAIRS, *VOCABULARY)
    assert len(whole) > 420

    assert gguf.read_texts(write(whole[:n_bytes])) == gguf.HeadTexts()


def test_a_list_that_says_it_is_longer_than_the_file_has_no_texts(write):
    endless = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 1 << 62)

    assert gguf.read_texts(write(head(endless, *VOCABULARY[1:]))) == gguf.HeadTexts()


def test_what_is_no_file_has_no_texts(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    assert [gguf.read_texts(str(tmp_path / name)) for name in ("fifo", "missing")] == [gguf.HeadTexts()] * 2
