"""Settings of an application and of the v2 protocol."""

from typing import Any

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import AppSettings, KserveSettings

NAMED = {"worker_app": "handlers:app"}


def load(environ: dict[str, str] | None = None, **overrides: Any) -> settings.Settings:
    return settings.load(NAMED | overrides, environ or {})


def test_an_application_alone_needs_no_model():
    chosen = load()

    assert chosen.models == ()
    assert chosen.app == AppSettings(worker_app="handlers:app")


def test_an_application_stands_beside_a_model_and_a_predictor():
    chosen = load(model="synthetic:", predictor="p.py:P")

    assert (len(chosen.models), chosen.predictor is not None, chosen.app is not None) == (1, True, True)


def test_without_an_application_there_are_no_settings_of_one():
    assert settings.load({"model": "synthetic:"}, {}).app is None


def test_the_environment_names_the_application():
    environ = {"COROSRV_WORKER_APP": "a.py:app", "COROSRV_WORKERS": "3", "COROSRV_GRPC_PORT": "9000"}

    chosen = settings.load({}, environ)

    assert chosen.app is not None
    assert (chosen.app.worker_app, chosen.app.workers, chosen.kserve.grpc_port) == ("a.py:app", 3, 9000)


def test_workers_are_processes_of_the_server_only_without_an_application():
    with_app = load(workers=3)
    without = settings.load({"model": "synthetic:", "workers": 3}, {})

    assert with_app.app is not None
    assert (with_app.app.workers, with_app.processes) == (3, 1)
    assert without.processes == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_app", "handlers"),
        ("worker_app", "handlers:"),
        ("worker_app", ":app"),
        ("app_dir", "/no/such/folder"),
        ("workers", 0),
        ("workers", 257),
        ("start_timeout", 0),
        ("shutdown_grace", -1),
        ("hang_grace", float("nan")),
        ("max_queue", -1),
        ("queue_bytes", 10),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: object):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be"):
        AppSettings(**NAMED | {name: value})


@pytest.mark.parametrize(("name", "value"), [("v2_max_body_bytes", 1), ("grpc_port", -1)])
def test_a_wrong_setting_of_the_protocol_is_refused_by_name(name: str, value: object):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be"):
        KserveSettings(**{name: value})
