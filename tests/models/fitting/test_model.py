"""What a model's settings make of its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corosrv.base.errors import ModelFailed
from corosrv.contracts.settings import ModelSettings
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.plan import plan_memory
from corosrv.models.fitting.room import CacheShape, LayerCache, Room

GIB = 1 << 30
FACTS = Facts(
    architecture="llama", n_ctx_train=2048, n_embd=512, n_inner=1024, n_vocab=1000, n_layers=20,
    cache=CacheShape(20 * (LayerCache(64, 64),)), size=GIB,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gpu_layers", "copies"), [("0", True), ("10", True), ("11", False), ("21", False), ("auto", False)]
)
def test_own_kernels_get_room_for_copies_where_gpus_leave_most_layers_to_the_processor(gpu_layers, copies):
    settings = ModelSettings(model="m.gguf", gpu_layers=gpu_layers)

    plan = plan_memory(settings, FACTS, Room(16 * GIB, "free"), Room(80 * GIB, "free on CUDA0"))

    assert (plan.copy_bytes > 0) is copies


@pytest.mark.parametrize(
    ("candidates", "gpu_layers", "picks"),
    [
        ("auto", "0", False),
        ("auto", "1", True),
        ("auto", "auto", True),
        ("processor", "auto", False),
        ("device", "0", True),
    ],
)
def test_logits_that_a_device_picks_from_have_room_for_their_copies(candidates, gpu_layers, picks):
    settings = ModelSettings(model="m.gguf", gpu_layers=gpu_layers, candidates=candidates)
    other = replace(settings, candidates="device" if candidates == "processor" else "processor")

    plans = [
        plan_memory(chosen, FACTS, Room(16 * GIB, "free"), Room(80 * GIB, "free on CUDA0"))
        for chosen in (settings, other)
    ]

    assert (plans[0].host_bytes > plans[1].host_bytes) is picks


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_refused_context_is_offered_to_be_shared_unless_texts_must_not_depend_on_it(is_deterministic: bool):
    settings = ModelSettings(model="m.gguf", slots=32, ctx=2048, deterministic=is_deterministic)

    with pytest.raises(ModelFailed) as refused:
        plan_memory(settings, FACTS, Room(3 * GIB // 2, "free"))

    assert ("--kv-unified" in str(refused.value)) is not is_deterministic
