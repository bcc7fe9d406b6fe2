"""What a model's memory takes is what libllama allocates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.models.fitting import gguf
from corosrv.models.fitting.plan import ContextPair, ModelNeeds
from corosrv.models.fitting.room import CacheTypes
from tests.support.architectures import ARCHITECTURES, write_wide_llama
from tests.support.buffer_sizes import Buffers, Order, buffer_sizes
from tests.support.engines import packaged_model
from tests.support.gguf import write_bert, write_llama, write_qwen2vl

_NAMES = {1: "f16", 2: "q4_0", 8: "q8_0", 30: "bf16"}
_LOG_BYTES = 11_000  # libllama's log has two digits of a MiB, of each of its caches

KEYS = {"llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.rope.dimension_count": 64}


def write_wide_heads(path: Path) -> Path:
    """A decoder of heads that are four times as wide as its embeddings share out."""
    width, heads = 32, 2

    def widen(tensors: dict) -> None:
        for layer in range(2):
            for name, shape in {"attn_q": (width, 64 * heads), "attn_output": (64 * heads, width)}.items():
                tensors[f"blk.{layer}.{name}.weight"] = (shape, [0.01] * (shape[0] * shape[1]))
            for name in ("attn_k", "attn_v"):
                tensors[f"blk.{layer}.{name}.weight"] = ((width, 64 * heads), [0.01] * (width * 64 * heads))

    return write_llama(path, edit=widen, **KEYS)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Order]:
    folder = tmp_path_factory.mktemp("models")
    writers = {
        **ARCHITECTURES,
        "wide heads": write_wide_heads,
        "qwen2vl": write_qwen2vl,
        "bert": write_bert,
    }
    paths = {name: writer(folder / f"{name}.gguf") for name, writer in writers.items()}
    orders = {name: Order(path, 8, 4096) for name, path in paths.items()}
    orders["a context that is rounded up"] = Order(paths["mixture"], 3, 1000, 64)
    orders["quantised"] = Order(write_wide_llama(folder / "quantised.gguf"), 8, 4096, 512, 8, 2)
    orders["shared"] = Order(paths["mixture"], 3, 300, 64, is_unified=True)
    orders["shared with states"] = Order(paths["lfm2"], 8, 4096, is_unified=True)
    orders["bfloat16"] = Order(paths["qwen2vl"], 5, 2048, 512, 30, 30)
    return orders


@pytest.fixture(scope="module")
def reported(orders: dict[str, Order]) -> Iterator[dict[str, Buffers]]:
    return dict(zip(orders, buffer_sizes(list(orders.values())), strict=True))


SHAPES = [
    *ARCHITECTURES, "wide heads", "qwen2vl", "bert", "a context that is rounded up", "quantised", "bfloat16", "shared",
    "shared with states",
]  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_cache_is_what_libllama_allocates(orders, reported, name: str):
    order = orders[name]
    facts = gguf.read(str(order.path))
    types = CacheTypes(_NAMES[order.key], _NAMES[order.value])

    taken = facts.cache.bytes(order.slots, order.context, types, order.is_unified)

    assert abs(taken - reported[name].cache) <= _LOG_BYTES


@pytest.mark.parametrize("name", SHAPES)
def test_the_buffers_of_a_step_are_not_underestimated(orders, reported, name: str):
    order = orders[name]
    needs = ModelNeeds(facts=gguf.read(str(order.path)), rows=order.rows, shares_context=order.is_unified)

    assert needs.computing(ContextPair(order.slots, order.context)) >= reported[name].computing


@pytest.mark.model
@pytest.mark.parametrize("is_unified", [False, True])
def test_the_real_models_cache_and_buffers_are_near_what_libllama_allocates(is_unified: bool):
    order = Order(Path(packaged_model()), 4, 2048, is_unified=is_unified)
    [reported] = buffer_sizes([order])
    needs = ModelNeeds(facts=gguf.read(packaged_model()), shares_context=is_unified)
    pair = ContextPair(order.slots, order.context)

    assert abs(needs.cache(pair) - reported.cache) <= _LOG_BYTES
    assert reported.computing <= needs.computing(pair) <= 4 * reported.computing
