"""Names of models on a hub: what they mean, and which are refused."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings, model_list
from corosrv.contracts.settings.model import models_of
from corosrv.contracts.settings.model_list import HubName


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:o/r", HubName("o/r")),
        ("o/r", HubName("o/r")),
        ("hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", HubName("ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M")),
        ("hf:o/Llama-3.2-1B/sub/m-Q8_0.gguf", HubName("o/Llama-3.2-1B", file="sub/m-Q8_0.gguf")),
        ("hf:o/r@v1.0:q8_0", HubName("o/r", "q8_0", revision="v1.0")),
        ("hf:o/r:Q8_0@v1.0", HubName("o/r", "Q8_0", revision="v1.0")),
        ("hf:o/r@refs%2Fpr%2F3/m.gguf", HubName("o/r", file="m.gguf", revision="refs/pr/3")),
    ],
)
def test_a_name_says_repository_revision_and_file(text, name):
    assert model_list.parse_hub_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:r", "hf:o/", "hf:../r", "hf:o/..", "hf:o/r/../../m.gguf", "hf:o/r/./m.gguf", "hf:o/r//m.gguf",
     "hf:o/r@../x", "hf:o/r@..%2Fx", "hf:o/r@a:Q4@b", "hf:o/r:Q4:Q5", "hf:o/r/m.bin", "hf:/o/r", "hf:o/r\n", "hf:o/r ",
     "hf:o/r:../x", "hf:o/r/a\x00.gguf", "hf:o/r/a\\..\\m.gguf", "hf:o/" + "r" * 2000, "hf:o/r@%00"],
)  # fmt: skip
def test_a_name_that_could_lead_elsewhere_is_refused(text):
    with pytest.raises(SettingsError, match="a model of a hub must be"):
        ModelSettings(model=text)


def test_a_model_of_a_hub_is_listed_by_its_repository():
    assert ModelSettings(model="hf:o/r-1.5B:Q4_K_M").names == ("o/r-1.5B:Q4_K_M",)
    assert ModelSettings(model="hf:o/r", model_alias="tiny").names == ("tiny",)


def test_models_of_a_hub_stand_in_a_list_with_settings_of_their_own():
    text = "small=hf:o/r:Q8_0?ctx=128&mmproj_auto=0,big=hf:o/big/m-00001-of-00002.gguf"

    models = models_of({"model": text})

    assert [model.model for model in models] == ["hf:o/r:Q8_0", "hf:o/big/m-00001-of-00002.gguf"]
    assert [model.names for model in models] == [("small",), ("big",)]
    assert (models[0].ctx, models[0].mmproj_auto, models[1].mmproj_auto) == (128, False, True)


def test_several_names_without_a_name_of_their_own_get_their_repository_s():
    text = model_list.join(["hf:o/r-1.5B:Q8_0", "hf:o/r/sub/m.gguf"])

    assert [entry.name for entry in model_list.parse(text)] == ["r-1.5B:Q8_0", "m"]
