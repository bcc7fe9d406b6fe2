"""Which values are in effect, and where each comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import PARTS, loading, sources
from corosrv.contracts.settings.loading import DEFAULT, DERIVED, FITTED, EffectiveSetting, SettingGroup

MODEL = {"COROSRV_MODEL": "synthetic:"}
WRITERS = {"toml": loading.groups_to_toml, "json": loading.groups_to_json}
PEERS = {"COROSRV_PEERS": "http://a:8080", "COROSRV_PEER_TOKEN": "long-enough"}


def groups_of(environ: dict[str, str], file: Path | None = None, **overrides: Any) -> list[SettingGroup]:
    raw = sources.read(overrides, environ, file, PARTS)
    return loading.effective_groups(raw, settings.assemble(raw))


def by_name(groups: list[SettingGroup]) -> dict[str, EffectiveSetting]:
    return {setting.name: setting for group in groups for setting in group.settings}


def test_every_setting_is_in_one_group():
    names = [setting.name for group in groups_of(MODEL) for setting in group.settings]

    assert sorted(names) == sorted(sources.names(PARTS))


def test_each_source_is_told(tmp_path: Path):
    file = tmp_path / "corosrv.toml"
    file.write_text("queue = 7\nctx = 64\n")
    environ = MODEL | {"COROSRV_CTX": "128", "COG_SETUP_TIMEOUT": "9", "COROSRV_PREDICTOR": "p.py:P"}

    told = by_name(groups_of(environ, file, slots=3))

    assert (told["queue"].value, told["queue"].source) == (7, f"file {file}")
    assert (told["ctx"].value, told["ctx"].source) == (128, "environment COROSRV_CTX")
    assert (told["slots"].value, told["slots"].source) == (3, "command line")
    assert (told["setup_timeout"].value, told["setup_timeout"].source) == (9.0, "environment COG_SETUP_TIMEOUT")
    assert (told["threads"].value, told["threads"].source) == (0, DEFAULT)


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        (MODEL | PEERS, "strict_model", True),
        ({"COROSRV_PREDICTOR": "p.py:P", "COROSRV_SLOTS": "3"}, "predictor_slots", 3),
    ],
)
def test_what_follows_from_other_settings_is_derived(environ: dict[str, str], name: str, value: Any):
    told = by_name(groups_of(environ))[name]

    assert (told.value, told.source) == (value, DERIVED)


@pytest.mark.model
def test_the_packaged_model_is_derived():
    assert by_name(groups_of({}))["model"].source == DERIVED


def test_each_model_of_a_list_has_a_group_of_its_own_settings():
    environ = {"COROSRV_MODEL": "a=synthetic:?slots=4,b=synthetic:", "COROSRV_SLOTS": "2"}
    raw = sources.read({}, environ, None, PARTS)
    chosen = settings.assemble(raw)

    (group,) = loading.own_groups(raw, chosen)
    fitted = loading.own_groups(raw, chosen, lambda model: replace(model, ctx=64))

    assert group.title == "model a"
    assert [(own.name, own.value, own.source) for own in group.settings] == [("slots", 4, "its entry in COROSRV_MODEL")]
    assert [group.title for group in fitted] == ["model a", "model b"]
    assert [(own.name, own.value, own.source) for own in fitted[1].settings] == [("ctx", 64, FITTED)]
    assert by_name(loading.effective_groups(raw, chosen))["slots"].value == 2


def test_without_defaults_groups_of_nothing_else_are_gone():
    kept = loading.without_defaults(groups_of(MODEL | {"COROSRV_TEMP": "0.8"}))

    assert [(group.title, [setting.name for setting in group.settings]) for group in kept] == [
        ("model", ["model"]),
        ("sampling", ["temp"]),
    ]


def test_a_text_has_what_is_set_before_the_defaults():
    lines = loading.groups_to_text(groups_of(MODEL | {"COROSRV_DRAIN_S": "3"})).splitlines()

    rows = lines[lines.index("server") + 1 :]
    assert rows[0].split() == ["drain_s", "3.0", "environment", "COROSRV_DRAIN_S"]
    assert rows[1].split() == ["model_bytes", "0", "default"]


SECRETS = {
    "COROSRV_API_KEYS": "secret-1",
    "WEBHOOK_AUTH_TOKEN": "secret-2",
    "COROSRV_REDIS_URL": "redis://:secret-3@host",
    "COROSRV_HF_TOKEN": "secret-4",
    "COROSRV_PEER_TOKEN": "secret-5",
    "COROSRV_UPLOAD_URL": "https://user:secret-6@host/put",
}


@pytest.mark.parametrize("write", [loading.groups_to_text, loading.groups_to_toml, loading.groups_to_json])
def test_no_form_has_a_secret(write):
    groups = groups_of(MODEL | {"COROSRV_PREDICTOR": "p.py:P"} | SECRETS)

    assert {setting.name for setting in by_name(groups).values() if setting.is_secret} == {
        "api_keys", "webhook_token", "redis_url", "hf_token", "peer_token", "upload_url"
    }  # fmt: skip
    assert "secret-" not in write(groups)


@pytest.mark.parametrize("is_all", [True, False])
@pytest.mark.parametrize("form", ["toml", "json"])
@pytest.mark.parametrize(
    "environ",
    [
        MODEL | {"COROSRV_SLOTS": "3", "COROSRV_TEMP": "0.25", "COROSRV_METRICS": "0", "COROSRV_ENCODER_SHARE": "0.5"},
        {
            "COROSRV_MODEL": "a=synthetic:?slots=4,b=synthetic:?ctx=64",
            "COROSRV_CTX": "32",
            "COROSRV_QUEUE_PER_KEY": "3",
        },
        {"COROSRV_PREDICTOR": "p.py:P", "COROSRV_SLOTS": "3", "COG_SETUP_TIMEOUT": "1e-7"},
        MODEL | {"COROSRV_WORKER_APP": "a.py:app", "COROSRV_WORKERS": "2", "COROSRV_GRPC_PORT": "0"},
        MODEL | {"COROSRV_CHAT_TEMPLATE": "a\n\t\"b\" 'c' \\ \x00\x1b\x7f\u2028é😀 # {{ x }}"},
        MODEL | {"COROSRV_UPSTREAM": "http://a:1?model=x http://b", "COROSRV_MGMT_PORT": "0"},
    ],
)
def test_a_file_that_was_written_means_the_same(tmp_path: Path, environ: dict[str, str], form: str, is_all: bool):
    groups = groups_of(environ)
    file = tmp_path / f"corosrv.{form}"
    file.write_text(WRITERS[form](groups if is_all else loading.without_defaults(groups)), "utf-8")

    assert settings.load(environ={}, file=file) == settings.load(environ=environ)


def test_a_comment_of_a_file_ends_with_its_line(tmp_path: Path):
    first = tmp_path / "first\nslots = 5.toml"
    first.write_text("queue = 7\n")
    second = tmp_path / "second.toml"
    second.write_text(loading.groups_to_toml(groups_of(MODEL, first)))

    assert settings.load(environ={}, file=second).models[0].slots == 0


@pytest.mark.parametrize("write", [loading.groups_to_toml, loading.groups_to_json])
def test_bytes_that_no_file_can_have_are_refused_by_their_variable(write):
    with pytest.raises(SettingsError, match="COROSRV_TAGS holds bytes that are no UTF-8"):
        write(groups_of(MODEL | {"COROSRV_TAGS": "a\udcff"}))


def test_a_text_shows_no_control_characters():
    assert (
        loading.groups_to_text(groups_of(MODEL | {"COROSRV_TAGS": "a\udcff\x1b[2J\x9b"}))
        .replace("\n", "")
        .isprintable()
    )
