"""What a file's head tells about the memory that its model takes."""

import os
import struct

import pytest

from corosrv.engine.binding import ModelInfo
from corosrv.models import gguf, size
from corosrv.settings import ModelSettings
from tests.support.engines import packaged_model


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def numbers(key: str, values: list[int]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def head(*pairs: bytes) -> bytes:
    architecture = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs) + 1) + architecture + b"".join(pairs)


PAIRS = [
    number("llama.context_length", 2048),
    number("llama.embedding_length", 64),
    number("llama.block_count", 3),
    number("llama.attention.head_count", 8),
    number("llama.attention.head_count_kv", 2),
]


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
    assert (facts.kv_bytes_per_token, facts.n_ctx_train, facts.n_embd) == (3 * 2 * 16 * 2, 2048, 64)


def test_widths_that_the_file_gives_count(write):
    widths = [number("llama.attention.key_length", 32), number("llama.attention.value_length", 16)]

    assert gguf.read(write(head(*PAIRS, *widths))).kv_bytes_per_token == 3 * 2 * 48 * 2


def test_heads_may_differ_from_layer_to_layer(write):
    pairs = [*PAIRS[:4], numbers("llama.attention.head_count_kv", [2, 0, 4])]

    assert gguf.read(write(head(*pairs))).kv_bytes_per_token == 6 * 16 * 2


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


def test_weights_their_copies_and_the_slots_are_summed(write):
    path = write(head(*PAIRS))
    facts = gguf.read(path)
    with_copies = ModelSettings(model=path, slots=2, ctx=4096)
    without = ModelSettings(model=path, slots=2, ctx=100, kernels="ggml")

    assert size.estimate(with_copies, facts) == 2 * facts.size + 2 * 2048 * 192
    assert size.estimate(without, facts) == facts.size + 2 * 100 * 192


def test_the_projector_counts_as_well(write, tmp_path):
    path, projector = write(head(*PAIRS)), tmp_path / "mmproj.gguf"
    projector.write_bytes(bytes(1000))
    facts = gguf.read(path)

    with_projector = size.estimate(ModelSettings(model=path, mmproj=str(projector)), facts)

    assert with_projector == size.estimate(ModelSettings(model=path), facts) + 1000
    assert size.estimate(ModelSettings(model=path, mmproj="/no/such.gguf"), facts) == with_projector - 1000


def test_a_file_that_says_nothing_is_taken_for_small():
    assert size.estimate(ModelSettings(model="/no/such.gguf"), None) == 0


@pytest.mark.model
def test_the_estimate_of_a_real_model_is_near_what_it_takes(smollm2):
    chosen = ModelSettings(model=packaged_model(), slots=16, ctx=512)
    facts = gguf.read(chosen.model)
    info: ModelInfo = smollm2.info

    guessed, taken = size.estimate(chosen, facts), size.measured(chosen, facts, info)

    # 30 layers of 3 heads, 64 wide.
    assert facts.kv_bytes_per_token == 30 * 3 * 128 * 2
    assert (facts.n_ctx_train, facts.n_embd) == (info.context_train, info.n_embd)
    assert taken <= guessed < 1.5 * taken
