"""Settings of a model's place: what is allowed, and what contradicts itself."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings
from corosrv.contracts.settings.model import models_of


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_layers", "some"), ("gpu_layers", "-2"), ("gpu_layers", ""), ("split_mode", "both"),
        ("tensor_split", "a,b"), ("tensor_split", "-1"), ("tensor_split", "nan"), ("tensor_split", "0,0"),
        ("main_gpu", -1), ("flash_attn", "yes"), ("numa", "all"), ("cache_type_k", "q2_k"), ("cache_type_v", "f64"),
        ("rope_scaling", "longer"), ("rope_freq_base", -1.0), ("rope_freq_scale", float("nan")),
        ("yarn_ext_factor", -2.0), ("yarn_orig_ctx", -1), ("batch", 0),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_stops_the_start(name, value):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be"):
        ModelSettings(model="m.gguf", **{name: value})


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_quantised_values_need_flash_attention(kind):
    with pytest.raises(
        SettingsError, match="COROSRV_CACHE_TYPE_V must be f32, f16, bf16 where COROSRV_FLASH_ATTN is off"
    ):
        ModelSettings(model="m.gguf", cache_type_v=kind, flash_attn="off")

    assert ModelSettings(model="m.gguf", cache_type_k=kind, flash_attn="off").cache_type_k == kind
    assert ModelSettings(model="m.gguf", cache_type_v=kind, flash_attn="on").cache_type_v == kind


@pytest.mark.parametrize("name", ["cache_type_k", "cache_type_v"])
def test_a_deterministic_engine_has_a_cache_of_its_own_type(name):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be bf16"):
        ModelSettings(model="m.gguf", deterministic=True, **{name: "q8_0"})

    assert ModelSettings(model="m.gguf", deterministic=True, **{name: "bf16"}).deterministic


def test_a_deterministic_engine_shifts_no_context():
    with pytest.raises(SettingsError, match="COROSRV_CONTEXT_SHIFT must be 0 where COROSRV_DETERMINISTIC is 1"):
        ModelSettings(model="m.gguf", deterministic=True, context_shift=True)

    assert ModelSettings(model="m.gguf", context_shift=True).context_shift


def test_a_deterministic_engine_shares_no_context():
    with pytest.raises(SettingsError, match="COROSRV_KV_UNIFIED must be 0 where COROSRV_DETERMINISTIC is 1"):
        ModelSettings(model="m.gguf", deterministic=True, kv_unified=True)

    assert ModelSettings(model="m.gguf", kv_unified=True).kv_unified


def test_each_of_several_models_has_its_own_place():
    one, two = models_of({"model": "one=1.gguf?cache_type_k=q8_0&tensor_split=3,1,two=2.gguf", "gpu_layers": "7"})

    assert (one.cache_type_k, one.tensor_split, one.gpu_layers) == ("q8_0", "3,1", "7")
    assert (two.cache_type_k, two.tensor_split, two.gpu_layers) == ("f16", "", "7")
