"""What is left open is fitted to the memory that is there; what is set and does not fit is refused with what would."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from corosrv.base.errors import ModelFailed
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.plan import ContextPair, ModelNeeds, fit
from corosrv.models.fitting.room import CacheShape, CacheTypes, LayerCache, Room

MIB, GIB = 1 << 20, 1 << 30
OPEN = ContextPair(0, 0)
# A model of a billion weights in four bits: 22 kB of cache for each token.
BILLION = Facts(
    architecture="llama",
    n_ctx_train=131_072,
    n_embd=2048,
    n_inner=5632,
    n_vocab=32_000,
    n_layers=22,
    cache=CacheShape(22 * (LayerCache(256, 256),)),
    size=700 * MIB,
)
NEEDS = ModelNeeds(facts=BILLION, prefix_bytes=GIB)


def room(size: float) -> Room:
    return Room(int(size), "free")


def test_with_room_for_everything_the_defaults_are_chosen():
    plan = fit(NEEDS, OPEN, room(64 * GIB))

    assert plan.pair == ContextPair(32, 4096)
    assert plan.prefix_bytes == GIB
    assert plan.copy_bytes >= BILLION.size


def test_a_model_that_was_trained_for_less_gets_less():
    trained = replace(BILLION, n_ctx_train=1024)

    assert fit(replace(NEEDS, facts=trained), OPEN, room(64 * GIB)).pair == ContextPair(32, 1024)


def test_in_four_gibibytes_a_billion_weights_get_fewer_slots_of_the_whole_context():
    plan = fit(NEEDS, OPEN, room(4 * GIB))

    assert 8 <= plan.pair.slots < 32
    assert plan.pair.context == 4096
    assert plan.host_bytes <= 4 * GIB


@pytest.mark.parametrize("size", [GIB, 1.2 * GIB, 1.5 * GIB, 2 * GIB, 3 * GIB, 5 * GIB, 8 * GIB])
def test_whatever_is_chosen_fits(size: float):
    plan = fit(NEEDS, OPEN, room(size))

    assert plan.host_bytes <= size
    assert plan.cache_bytes == BILLION.cache.bytes(plan.pair.slots, plan.pair.context, CacheTypes())
    assert plan.host_bytes >= plan.cache_bytes


def test_more_memory_never_gives_less():
    plans = [fit(NEEDS, OPEN, room(size * 64 * MIB)) for size in range(14, 150)]
    tokens = [plan.pair.slots * plan.pair.context for plan in plans if plan.holds_weights]
    decent = [plan.pair for plan in plans if plan.pair.slots >= 4 and plan.pair.context >= 1024]

    assert len(decent) > 100
    assert max(tokens) == tokens[-1]


def test_what_is_set_stays_and_the_other_is_fitted():
    assert fit(NEEDS, ContextPair(2, 0), room(2 * GIB)).pair.slots == 2
    assert fit(NEEDS, ContextPair(0, 8192), room(4 * GIB)).pair.context == 8192
    assert fit(NEEDS, ContextPair(3, 512), room(4 * GIB)).pair == ContextPair(3, 512)


@pytest.mark.parametrize(
    "wish", [ContextPair(32, 8192), ContextPair(32, 0), ContextPair(0, 131_072), ContextPair(256, 4096)]
)
def test_what_is_set_and_does_not_fit_is_refused_with_a_pair_that_would(wish: ContextPair):
    small = room(1.3 * GIB)
    if wish.slots and not wish.context:
        small = room(1.1 * GIB)

    with pytest.raises(ModelFailed) as refused:
        fit(NEEDS, wish, small)

    advice = re.search(r"set COROSRV_SLOTS=(\d+) and COROSRV_CTX=(\d+)", str(refused.value))
    assert advice is not None
    assert fit(NEEDS, ContextPair(int(advice[1]), int(advice[2])), small)


SHARING = re.compile(
    r"; with --kv-unified \(COROSRV_KV_UNIFIED=1\) and COROSRV_CTX=(\d+), (\d+) slots would share (\d+) tokens, "
    r"and one may have (\d+) while others are idle$"
)


def refusal(needs: ModelNeeds, wish: ContextPair, size: float) -> str:
    with pytest.raises(ModelFailed) as refused:
        fit(needs, wish, room(size))
    return str(refused.value)


@pytest.mark.parametrize(
    ("wish", "size"),
    [(ContextPair(32, 131_072), 6 * GIB), (ContextPair(8, 131_000), 5 * GIB), (ContextPair(3, 40_000), 2.5 * GIB)],
)
def test_a_refusal_names_the_largest_context_that_the_slots_could_share_where_one_has_room_in_it(wish, size):
    advice = SHARING.search(refusal(NEEDS, wish, size))

    assert advice is not None
    context, slots, shared, most = map(int, advice.groups())
    sharing = replace(NEEDS, shares_context=True)
    assert (slots, shared, most) == (wish.slots, wish.slots * context, wish.context)
    assert shared >= wish.context
    assert fit(sharing, ContextPair(slots, context), room(size)).pair == ContextPair(slots, context)
    assert "--kv-unified" not in refusal(sharing, ContextPair(slots, context + 512), size)


@pytest.mark.parametrize(
    ("needs", "wish", "size"),
    [
        (NEEDS, ContextPair(32, 131_072), 3 * GIB),  # all of it is not enough for one
        (NEEDS, ContextPair(1, 131_072), 3 * GIB),
        (replace(NEEDS, may_share_context=False), ContextPair(32, 131_072), 6 * GIB),
        (replace(NEEDS, facts=replace(BILLION, cache=CacheShape())), ContextPair(32, 131_072), 6 * GIB),
    ],
    ids=["too little", "one slot", "must not share", "nothing to share"],
)
def test_a_refusal_is_silent_about_sharing_where_that_would_not_help(needs, wish, size):
    words = refusal(needs, wish, size)

    assert "would fit: set COROSRV_SLOTS=" in words
    assert "--kv-unified" not in words


def test_a_context_that_fits_nowhere_is_refused_without_advice():
    with pytest.raises(ModelFailed, match=r"no slots and no context would fit, not even 1 slot of 256 tokens"):
        fit(NEEDS, OPEN, room(200 * MIB))


def test_weights_that_do_not_fit_are_read_from_their_file():
    plan = fit(NEEDS, OPEN, room(600 * MIB))

    assert not plan.holds_weights
    assert "read from the file again and again" in plan.reason


def test_the_cache_of_a_model_on_a_gpu_has_to_fit_there():
    on_gpu = replace(NEEDS, gpu_share=1.0, may_copy=False)

    roomy = fit(on_gpu, OPEN, room(4 * GIB), room(80 * GIB))
    tight = fit(on_gpu, OPEN, room(4 * GIB), Room(2 * GIB, "free on CUDA0"))

    assert roomy.pair == ContextPair(32, 4096)
    assert tight.pair.slots < 32
    assert tight.gpu_bytes <= 2 * GIB
    assert "free on CUDA0" in tight.reason


def test_the_reason_tells_what_was_chosen_what_is_free_and_what_was_wanted():
    words = fit(NEEDS, OPEN, Room(4 * GIB, "left by the cgroup's limit")).reason

    assert re.fullmatch(
        r"\d+ slots of 4096 tokens take at most [\d.]+ GB \(weights 734 MB, KV cache [\d.]+ GB\); "
        r"4.3 GB are left by the cgroup's limit, where 32 slots of 4096 tokens would need [\d.]+ GB",
        words,
    )
