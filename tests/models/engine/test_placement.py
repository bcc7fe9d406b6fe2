"""Tests where a model lies: refused in words where there is no such device, and computed alike where there is."""

from __future__ import annotations

import pytest

from corosrv.base.errors import ModelFailed
from corosrv.contracts.jobs import Job, Sampling, Text
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import libllama
from corosrv.models.engine.binding import Placement
from corosrv.models.engine.libllama import Device
from corosrv.models.engine.options import placement
from tests.support.engines import opened, packaged_model, read_all

CPU = Device("CPU", "a processor", True)
GPUS = [CPU, Device("CUDA0", "a GPU", False), Device("CUDA1", "another", False)]
ALONE = {"slots": 1, "ctx": 256}


def settings(**chosen) -> ModelSettings:
    return ModelSettings(model="m.gguf", **chosen)


def test_what_nobody_set_is_what_libllama_does():
    assert placement(settings(), [CPU]) == Placement()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"gpu_layers": "20"}, "COROSRV_GPU_LAYERS needs a GPU, and this libllama sees none"),
        ({"tensor_split": "3,1"}, "COROSRV_TENSOR_SPLIT needs a GPU"),
        ({"main_gpu": 1}, "COROSRV_MAIN_GPU needs a GPU"),
        ({"split_mode": "row"}, "COROSRV_SPLIT_MODE needs a GPU"),
        (
            {"device": "CUDA0"},
            r"no device 'CUDA0' here; it has the processor alone \(none\).*CMAKE_ARGS=-DGGML_CUDA=on",
        ),
    ],
)
def test_a_setting_of_gpus_is_refused_where_there_is_none(chosen, words):
    with pytest.raises(ModelFailed, match=words):
        placement(settings(**chosen), [CPU])


@pytest.mark.parametrize("chosen", [{"gpu_layers": "0"}, {"gpu_layers": "all"}, {"device": "none"}])
def test_a_setting_that_asks_for_no_gpu_is_taken_where_there_is_none(chosen):
    placement(settings(**chosen), [CPU])


def test_devices_are_chosen_by_name():
    made = placement(settings(device="CUDA1, CUDA0", tensor_split="3,1", gpu_layers="7", main_gpu=1), GPUS)

    assert (made.devices, made.tensor_split, made.gpu_layers, made.main_gpu) == (("CUDA1", "CUDA0"), (3.0, 1.0), 7, 1)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"device": "CUDA2"}, "no device 'CUDA2' here; the devices are CUDA0, CUDA1, and none"),
        ({"tensor_split": "1,1,1"}, "3 parts, for 2 devices"),
        ({"main_gpu": 2}, "is 2, and the devices are 0 to 1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(chosen, words):
    with pytest.raises(ModelFailed, match=words):
        placement(settings(**chosen), GPUS)


@pytest.mark.parametrize(
    ("mmap", "mlock", "mode"), [(True, False, -1), (False, False, 0), (False, True, 2), (True, True, 3)]
)
def test_mapping_and_locking_are_one_mode(mmap, mlock, mode):
    assert placement(settings(mmap=mmap, mlock=mlock), [CPU]).load_mode == mode


@pytest.mark.model
def test_libllama_sees_the_processor():
    assert "CPU" in [device.name for device in libllama.devices() if device.is_processor]


def capital(**chosen) -> str:
    with opened(model=packaged_model(), **ALONE, **chosen) as engine:
        job = Job((Text("The capital of France is"),), max_tokens=4, sampling=Sampling(temperature=0))
        return "".join(chunk.text for chunk in read_all(engine.submit(job)))


@pytest.mark.model
@pytest.mark.parametrize(
    "chosen",
    [
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"cache_type_k": "f32", "flash_attn": "off"},
        {"mmap": False, "device": "none", "gpu_layers": "0", "batch": 32},
    ],
)
def test_a_model_answers_wherever_it_lies(chosen):
    assert "Paris" in capital(**chosen)


@pytest.mark.model
def test_a_scaled_model_has_a_longer_context_than_it_was_trained_for():
    longer = {"slots": 1, "ctx": 9000, "rope_scaling": "yarn", "rope_freq_scale": 0.5}

    with opened(model=packaged_model(), slots=1, ctx=9000) as engine:
        assert engine.info.context == engine.info.context_train < 9000
    with opened(model=packaged_model(), **longer) as engine:
        assert engine.info.context >= 9000
