"""How a predictor is served: what is said by option, variable and file, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import PredictionSettings

NAMED = {"COROSRV_PREDICTOR": "predict.py:Predictor"}


def load(environ: dict[str, str] | None = None, **overrides: Any) -> PredictionSettings:
    loaded = settings.load(overrides, NAMED | (environ or {})).predictor
    assert loaded is not None
    return loaded


def test_without_a_predictor_there_are_none():
    assert settings.load({}, {"COG_MAX_CONCURRENCY": "3"}).predictor is None
    assert settings.load({"predictor": ""}, {}).predictor is None


def test_a_predictor_alone_brings_no_model_along():
    assert settings.load({}, NAMED).models == ()
    assert len(settings.load({}, NAMED | {"COROSRV_MODEL": "synthetic:"}).models) == 1


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("COG_MAX_CONCURRENCY", "3", "predictor_slots", 3),
        ("COG_SETUP_TIMEOUT", "2.5", "setup_timeout", 2.5),
        ("COG_THROTTLE_RESPONSE_INTERVAL", "0.1", "webhook_interval", 0.1),
        ("COG_STREAM_HISTORY_CAPACITY", "0", "stream_history", 0),
        ("WEBHOOK_AUTH_TOKEN", "token", "webhook_token", "token"),
        ("COG_USER_AGENT", "agent/1", "user_agent", "agent/1"),
    ],
)
def test_cogs_variables_count_where_nothing_else_is_said(variable: str, text: str, name: str, value: object):
    own = next(field for field in fields(PredictionSettings) if field.name == name)
    said = {"COROSRV_" + name.upper(): "9", variable: text}

    assert getattr(load({variable: text}), name) == value
    assert str(getattr(load(said), name)).removesuffix(".0") == "9"
    assert own.metadata["also"] == variable


def test_slots_are_the_predictors_where_no_model_is_served():
    assert load({"COROSRV_SLOTS": "4"}).predictor_slots == 4
    assert load({"COG_MAX_CONCURRENCY": "3"}, slots=4).predictor_slots == 4
    assert load({"COROSRV_SLOTS": "4"}, predictor_slots=2).predictor_slots == 2
    assert load({"COROSRV_SLOTS": "4", "COROSRV_MODEL": "synthetic:"}).predictor_slots is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("predictor_slots", 0),
        ("predictor_slots", 5000),
        ("setup_timeout", -1),
        ("setup_timeout", float("nan")),
        ("drain_timeout", float("inf")),
        ("webhook_interval", -0.1),
        ("result_ttl", 1e9),
        ("stream_history", -1),
        ("max_body", 10),
        ("upload_url", "ftp://host"),
        ("user_agent", "two\r\nlines"),
        ("webhook_hosts", "http://hooks.example.com"),
        ("webhook_token", "gehe\u00efm"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: object):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be"):
        PredictionSettings(predictor="p", **{name: value})


def test_a_refused_token_is_not_shown():
    with pytest.raises(SettingsError) as refused:
        PredictionSettings(predictor="p", webhook_token="secret\n")

    assert "secret" not in str(refused.value)


def test_one_file_has_settings_of_all_parts(tmp_path: Path):
    file = tmp_path / "corosrv.toml"
    file.write_text('model = "synthetic:"\npredictor = "predict.py:Predictor"\nrestart_worker = true\nslots = 2\n')

    loaded = settings.load({}, {}, file)

    assert loaded.predictor is not None
    assert (loaded.predictor.restart_worker, loaded.predictor.predictor_slots) == (True, None)
    assert loaded.models[0].slots == 2


def test_a_file_with_unknown_settings_is_refused(tmp_path: Path):
    file = tmp_path / "corosrv.toml"
    file.write_text('predictor = "p"\nretart_worker = true\n')

    with pytest.raises(SettingsError, match="retart_worker"):
        settings.load({}, {}, file)


def test_misspelt_variables_are_found_and_right_ones_are_not():
    environ = {"COROSRV_PREDICTR": "x", "COROSRV_PREDICTOR": "x", "COROSRV_RESTART_WORKER": "1", "COROSRV_SLOTS": "1"}

    assert settings.unknown_variables(environ) == ["COROSRV_PREDICTR"]
