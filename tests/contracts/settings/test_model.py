"""Settings of one model, and of each model of a list."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings
from corosrv.contracts.settings.model import models_of


def test_a_real_model_has_at_most_as_many_slots_as_libllama_keeps_sequences():
    with pytest.raises(SettingsError, match="COROSRV_SLOTS must be from 1 to 256"):
        ModelSettings(model="model.gguf", slots=257)


def test_synthetic_options_are_numbers():
    chosen = ModelSettings(model="synthetic:?tokens_per_s=12.5&prefill_tokens_per_s=1000&length=7")

    assert chosen.synthetic_options == {"tokens_per_s": 12.5, "prefill_tokens_per_s": 1000.0, "length": 7}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"model": "/models/tiny.Q4.gguf"}, ("tiny.Q4",)),
        ({"model": "synthetic:"}, ("synthetic",)),
        ({"model": "m.gguf", "model_alias": " a, b ,,"}, ("a", "b")),
    ],
)
def test_the_first_name_is_the_alias_or_the_file_s_stem(chosen, names):
    assert ModelSettings(**chosen).names == names


def test_a_template_is_given_as_text_or_in_a_file(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0].content }}")

    assert ModelSettings(chat_template="{{ 1 }}").template == "{{ 1 }}"
    assert ModelSettings(chat_template_file=str(path)).template == "{{ messages[0].content }}"
    with pytest.raises(SettingsError, match="COROSRV_CHAT_TEMPLATE_FILE must be empty"):
        ModelSettings(chat_template="{{ 1 }}", chat_template_file=str(path))


def test_a_projector_is_a_model_s_own():
    a, b = models_of({"model": "a=a.gguf?mmproj=eye.gguf&encoder_threads=2,b=b.gguf"})

    assert (a.mmproj, a.encoder_threads, b.mmproj) == ("eye.gguf", 2, "")
    with pytest.raises(SettingsError, match="COROSRV_MMPROJ must be empty for a synthetic model"):
        ModelSettings(model="synthetic:", mmproj="eye.gguf")


def test_an_empty_list_has_no_models():
    assert models_of({"slots": 4}) == ()


def test_models_of_a_list_share_what_is_not_their_own():
    values = {"model": "a=synthetic:?slots=2&alias=x,b=synthetic:?length=5", "slots": 4, "ctx": 64, "tags": "t"}
    a, b = models_of(values)

    assert (a.names, a.slots, a.ctx, a.model) == (("a", "x"), 2, 64, "synthetic:")
    assert (b.names, b.slots, b.ctx, b.model) == (("b",), 4, 64, "synthetic:?length=5")
    assert a.labels == b.labels == ("t",)


def test_a_name_may_have_slashes_as_on_a_hub():
    a, b = models_of({"model": "owner/a=folder/a.gguf,owner/b:Q4=./c=d.gguf"})
    (path,) = models_of({"model": "./owner/a=b.gguf"})

    assert (a.names, a.model) == (("owner/a",), "folder/a.gguf")
    assert (b.names, b.model) == (("owner/b:Q4",), "./c=d.gguf")
    assert path.model == "./owner/a=b.gguf"


def test_a_model_of_a_list_may_have_any_setting_of_a_model():
    a, b = models_of({"model": "a=a.gguf?lora=x.gguf:0.5&reasoning_format=none,b=b.gguf"})

    assert (a.adapters, a.reasoning_format) == ((("x.gguf", 0.5),), "none")
    assert (b.adapters, b.reasoning_format) == ((), "deepseek")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "a=a.gguf?slot=2"}, "COROSRV_MODEL: a: slot=2 is not a setting of one model; those are: alias, "),
        ({"model": "a=a.gguf?metrics=0"}, "COROSRV_MODEL: a: metrics=0 is not a setting of one model"),
        ({"model": "a=a.gguf?slots=many"}, "COROSRV_MODEL: a: slots must be of type int"),
        ({"model": "a=a.gguf?temp=101"}, "COROSRV_MODEL: a: COROSRV_TEMP must be from 0 to 100"),
        ({"model": "a=a.gguf?slots=257"}, "COROSRV_MODEL: a: COROSRV_SLOTS must be from 1 to 256"),
        ({"model": "a=,b=b.gguf"}, "COROSRV_MODEL: a needs a path"),
        ({"model": "a=a.gguf,a=b.gguf"}, "COROSRV_MODEL: the name 'a' stands for two models"),
        ({"model": "a=a.gguf?alias=b,b=b.gguf"}, "COROSRV_MODEL: the name 'b' stands for two models"),
        ({"model": "a=a.gguf,b=b.gguf", "model_alias": "c"}, "COROSRV_MODEL_ALIAS is for one model"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_in_words(values, words):
    with pytest.raises(SettingsError) as refused:
        models_of(values)

    assert str(refused.value).startswith(words)
