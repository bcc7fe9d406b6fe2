"""All settings at once: checks, sources, and sentences that name the variable."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import PARTS, ModelSettings, model_list

SYNTHETIC = {"model": "synthetic:"}


def load(environ=None, **overrides):
    return settings.load({**SYNTHETIC, **overrides}, environ=environ or {})


@pytest.fixture
def file(tmp_path):
    """Writes a settings file and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "corosrv.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", "-1"),
        ("slots", "100001"),
        ("slots", "many"),
        ("slots", "1.5"),
        ("ctx", "15"),
        ("ctx", "0x100"),
        ("ctx", "2147483648"),
        ("queue", "-1"),
        ("queue_per_key", "-1"),
        ("response_store_bytes", "-1"),
        ("queue", "2147483648"),
        ("threads", "-1"),
        ("threads", "1025"),
        ("kernels", "blas"),
        ("kernels", "AUTO"),
        ("step_ms", "0"),
        ("step_ms", "60001"),
        ("step_ms", "nan"),
        ("step_ms", "soon"),
        ("reader_bytes", "1023"),
        ("reader_bytes", "9223372036854775808"),
        ("chat_template_file", "/nowhere/template.jinja"),
        ("reasoning", "1"),
        ("reasoning_format", "harmony"),
        ("reasoning_budget", "-2"),
        ("reasoning_budget", "few"),
        ("n_predict", "0"),
        ("n_predict", "-2"),
        ("temp", "-0.1"),
        ("temp", "101"),
        ("temp", "nan"),
        ("temp", "inf"),
        ("seed", "-2"),
        ("seed", "4294967296"),
        ("strict_model", "yes"),
        ("strict_model", "2"),
        ("max_body_bytes", "1023"),
        ("bodies_bytes", "33554431"),
        ("metrics", "true"),
        ("sse_ping_interval", "0"),
        ("sse_ping_interval", "-2"),
        ("sse_ping_interval", "nan"),
        ("sse_ping_interval", "inf"),
        ("write_timeout_s", "0.5"),
        ("write_timeout_s", "nan"),
        ("write_timeout_s", "inf"),
        ("drain_s", "-1"),
        ("drain_s", "nan"),
        ("drain_s", "inf"),
        ("engine", "unix:/run/corosrv.sock"),
        ("context_shift", "2"),
        ("model", "synthetic:?tokens_per_s=fast"),
        ("model", "synthetic:?tokens_per_s=-1"),
        ("model", "synthetic:?tokens_per_s=nan"),
        ("model", "synthetic:?length=1.5"),
        ("model", "synthetic:?length"),
        ("model", "synthetic:?speed=20"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_the_variable(name, value):
    variable = f"COROSRV_{name.upper()}"

    with pytest.raises(SettingsError, match=f"^{variable}\\b"):
        settings.load(environ={"COROSRV_MODEL": "synthetic:", variable: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("slots", "256", 256),
        ("ctx", "16", 16),
        ("queue", "0", 0),
        ("kernels", "ggml", "ggml"),
        ("step_ms", "12.5", 12.5),
        ("reasoning", "off", "off"),
        ("reasoning_format", "none", "none"),
        ("reasoning_budget", "0", 0),
        ("n_predict", "-1", -1),
        ("temp", "0", 0.0),
        ("seed", "4294967295", 2**32 - 1),
        ("strict_model", "1", True),
        ("metrics", "0", False),
        ("sse_ping_interval", "-1", -1.0),
        ("cors_origins", "https://a.example", "https://a.example"),
    ],
)
def test_a_good_value_is_read_from_the_environment(name, text, value):
    chosen = load({f"COROSRV_{name.upper()}": text})

    assert value in [getattr(part, name) for part in (chosen.server, chosen.models[0]) if hasattr(part, name)]


def test_later_sources_win(file):
    path = file("slots = 2\nctx = 100\nqueue = 7\n")

    chosen = settings.load({**SYNTHETIC, "queue": 9}, environ={"COROSRV_CTX": "200", "COROSRV_QUEUE": "8"}, file=path)

    (model,) = chosen.models
    assert (model.slots, model.ctx, model.queue) == (2, 200, 9)


def test_an_override_of_none_is_none(file):
    assert load({"COROSRV_SLOTS": "3"}, slots=None).models[0].slots == 3


def test_an_empty_variable_is_as_good_as_none():
    assert load({"COROSRV_SLOTS": ""}).models[0].slots == ModelSettings().slots


def test_the_environment_may_name_the_file(file):
    path = file("slots = 5\n")

    assert load({"COROSRV_CONFIG": str(path)}).models[0].slots == 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("slots = '2'", "slots must be of type int"),
        ("slots = true", "slots must be of type int"),
        ("slots = 2.0", "slots must be of type int"),
        ("step_ms = 'x'", "step_ms must be of type float"),
        ("metrics = 1", "metrics must be of type bool"),
        ("model = 5", "model must be of type str"),
        ("model = ['a']", "model must be of type str"),
        ("slot = 2", "unknown setting 'slot'"),
        ("[engine]\nslots = 2", "engine must be of type str"),
        ("slots = ", "cannot be read"),
    ],
)
def test_a_wrong_line_in_the_file_is_refused_with_the_file_s_name(file, line, words):
    path = file(line)

    with pytest.raises(SettingsError) as refused:
        settings.load(SYNTHETIC, environ={}, file=path)

    assert words in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path, content):
    path = tmp_path / "corosrv.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError, match="cannot be read"):
        settings.load(SYNTHETIC, environ={}, file=path)


def test_a_whole_number_in_the_file_may_stand_for_a_fraction(file):
    assert settings.load(SYNTHETIC, environ={}, file=file("step_ms = 40\n")).models[0].step_ms == 40.0


def test_variables_that_are_no_settings_are_reported():
    environ = {"COROSRV_SLOTS": "2", "COROSRV_SLOT": "2", "COROSRV_CONFIG": "x", "HOME": "/", "COROSRV_": ""}

    assert settings.unknown_variables(environ | {"COROSRV_UPSTREAM_KEY_A": "key"}) == ["COROSRV_", "COROSRV_SLOT"]


def test_a_child_gets_no_secrets_and_all_else(file):
    config = str(file('upstream = "http://b?weight=2&api_key_env=IN_FILE"\n'))
    secrets = ("COROSRV_API_KEYS", "COROSRV_REDIS_URL", "COROSRV_PEER_TOKEN", "COROSRV_HF_TOKEN", "WEBHOOK_AUTH_TOKEN")
    secrets += ("COROSRV_WEBHOOK_SECRET", "COROSRV_MGMT_TOKEN_FILE", "COROSRV_UPSTREAM_KEY_A")
    kept = {"HF_TOKEN": "t", "HOME": "/", "COROSRV_SLOTS": "2"}

    assert settings.child_environment(dict.fromkeys(secrets, "s") | kept) == kept
    in_file, named = kept | {"COROSRV_CONFIG": config}, kept | {"COROSRV_UPSTREAM": "http://a?api_key_env=K http://b"}
    assert settings.child_environment(in_file | {"IN_FILE": "s"}) == in_file
    assert settings.child_environment(named | {"K": "s"}) == named


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        ("COROSRV_MODLE", "COROSRV_MODLE (did you mean COROSRV_MODEL?)"),
        ("COROSRV_CONFG", "COROSRV_CONFG (did you mean COROSRV_CONFIG?)"),
        ("COROSRV_ZZZZZZ", "COROSRV_ZZZZZZ"),
    ],
)
def test_a_variable_that_is_no_setting_is_told_with_the_nearest(unknown, words):
    assert settings.with_nearest(unknown) == words


def test_the_words_for_a_missing_model_say_how_to_get_one(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(SettingsError, match=r"COROSRV_MODEL.*GGUF.*corosrv\[smollm2\]"):
        settings.load(environ={})


@pytest.mark.model
def test_without_a_model_the_packaged_one_is_taken():
    assert settings.load(environ={}).models[0].model == model_list.packaged_model()


@pytest.mark.model
def test_the_packaged_model_has_the_name_of_its_extra_besides_its_file_s():
    assert settings.load(environ={}).models[0].names == ("SmolLM2-135M-Instruct.Q4_1", "smollm2")
    assert settings.load(environ={"COROSRV_MODEL_ALIAS": "mine"}).models[0].names == ("mine",)


def test_settings_cannot_be_changed():
    chosen = load()

    for part, name in ((chosen, "models"), (chosen.server, "metrics"), (chosen.models[0], "slots")):
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, 2)


def test_a_setting_is_of_one_part_alone():
    names = [field.name for part in PARTS for field in fields(part)]

    assert len(names) == len(set(names))


def test_every_part_reads_the_same_sources(file):
    path = file('drain_s = 0.1\nslots = 3\npredictor = "p.py:P"\n')
    chosen = settings.load({**SYNTHETIC, "result_ttl": 5.0}, {"COROSRV_CTX": "64"}, path)

    assert (chosen.server.drain_s, chosen.models[0].slots, chosen.models[0].ctx) == (0.1, 3, 64)
    assert chosen.predictor is not None
    assert chosen.predictor.result_ttl == 5.0
