"""Settings of upstreams: where they come from, and what is refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from corosrv import cli
from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import OperatorSettings, UpstreamSettings
from corosrv.contracts.settings.fleet import POLICIES
from corosrv.fleet.upstreams.policies import POLICY_NAMES

TWO = ("http://a:8080?concurrency=4", "http://b:8000")


@pytest.mark.parametrize("text", [" ".join(TWO), ",".join(TWO), f" {TWO[0]} , {TWO[1]}  "])
def test_upstreams_are_separated_by_spaces_or_commas(text: str):
    chosen = settings.load(environ={"COROSRV_UPSTREAM": text})

    assert chosen.upstream is not None
    assert chosen.upstream.urls == TWO


def test_with_upstreams_alone_no_model_is_served():
    assert settings.load({"upstream": TWO[0]}, {}).models == ()


def test_an_elastic_server_needs_no_upstream_at_its_start():
    chosen = settings.load({"elastic": True}, {})

    assert (chosen.models, chosen.upstream) == ((), UpstreamSettings(elastic=True))


def test_a_model_is_served_beside_upstreams():
    chosen = settings.load({"upstream": TWO[0], "model": "synthetic:"}, {})

    assert [model.model for model in chosen.models] == ["synthetic:"]
    assert chosen.upstream is not None


def test_without_upstreams_there_are_no_settings_of_them():
    assert settings.load({"model": "synthetic:", "upstream_queue": 5}, {}).upstream is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upstream_policy", "random"),
        ("upstream_queue", -1),
        ("upstream_queue_bytes", 10),
        ("upstream_patience", -1),
        ("upstream_first_byte", 0),
        ("upstream_idle", float("nan")),
        ("upstream_spill", -1),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: object):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be"):
        UpstreamSettings(**{name: value})


def test_every_policy_can_be_set():
    assert POLICY_NAMES == POLICIES


def test_a_management_port_that_is_none_is_refused_by_name():
    with pytest.raises(SettingsError, match="COROSRV_MGMT_PORT must be"):
        OperatorSettings(mgmt_port=65536)


def test_the_flag_may_be_given_several_times(monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, object] = {}
    monkeypatch.setattr(cli.settings, "load", lambda overrides, file: seen.update(overrides) or cli.fail("enough"))

    CliRunner().invoke(cli.main, ["serve", "--upstream", TWO[0], "--upstream", TWO[1]])

    assert seen["upstream"] == " ".join(TWO)


def test_upstreams_and_several_processes_are_refused():
    result = CliRunner().invoke(cli.main, ["serve", "--upstream", TWO[0], "--workers", "2"])

    assert result.exit_code == 1
    assert "--workers must be 1 with --upstream" in result.output
    assert "COROSRV_REDIS_URL" in result.output
