"""Settings of peers: where they come from, and what is refused."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from corosrv import cli
from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import PeerSettings
from corosrv.contracts.settings.fleet import new_replica_id

TOKEN = "a-long-secret"
TWO = ("http://a:8080", "http://b:8000?id=b")


@pytest.mark.parametrize("text", [" ".join(TWO), ",".join(TWO), f" {TWO[0]} , {TWO[1]}  "])
def test_peers_are_separated_by_spaces_or_commas(text: str):
    chosen = settings.load(environ={"COROSRV_PEERS": text, "COROSRV_PEER_TOKEN": TOKEN})

    assert chosen.peer is not None
    assert chosen.peer.urls == TWO


def test_peers_without_a_token_stop_the_start():
    with pytest.raises(SettingsError, match="COROSRV_PEER_TOKEN must be set"):
        settings.load({"peers": TWO[0]}, {})


def test_a_server_that_finds_peers_needs_their_token_and_a_redis_and_is_as_one_with_peers():
    chosen = {"peer_url": "http://10.0.0.1:8080"}
    redis = {"redis_url": "redis://h:1"}

    with pytest.raises(SettingsError, match="COROSRV_PEER_URL needs COROSRV_PEER_TOKEN"):
        settings.load(chosen | redis, {})
    with pytest.raises(SettingsError, match="COROSRV_PEER_URL is for servers"):
        settings.load(chosen | {"peer_token": TOKEN}, {})
    found = settings.load(chosen | redis | {"peer_token": TOKEN}, {})
    assert found.models == ()
    assert settings.load(chosen | redis | {"peer_token": TOKEN, "model": "synthetic:"}, {}).server.strict_model


def test_with_peers_alone_no_model_is_served():
    assert settings.load({"peers": TWO[0], "peer_token": TOKEN}, {}).models == ()


def test_with_peers_a_single_model_does_not_answer_to_any_name():
    options = {"model": "synthetic:", "peer_token": TOKEN}

    assert settings.load(options | {"peers": TWO[0]}, {}).server.strict_model
    assert not settings.load(options, {}).server.strict_model


def test_a_token_alone_makes_a_server_that_others_may_have_as_a_peer():
    chosen = settings.load({"model": "synthetic:", "peer_token": TOKEN}, {})

    assert chosen.peer is not None
    assert chosen.peer.urls == ()


def test_without_a_token_there_are_no_settings_of_peers():
    assert settings.load({"model": "synthetic:", "replica_id": "a"}, {}).peer is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replica_id", "a b"),
        ("replica_id", "x" * 65),
        ("delegate_max", 0),
        ("peer_token", "short"),
        ("peer_token", "with spaces"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: object):
    with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be") as caught:
        PeerSettings(**{name: value})

    if name == "peer_token":
        assert str(value) not in str(caught.value)


def test_each_replica_has_an_id_of_its_own():
    assert new_replica_id() != new_replica_id()


def test_the_command_line_takes_several_peers(monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, object] = {}
    monkeypatch.setattr(cli.settings, "load", lambda overrides, file: seen.update(overrides) or cli.fail("enough"))

    CliRunner().invoke(cli.main, ["serve", "--peer", TWO[0], "--peer", TWO[1]])

    assert seen["peers"] == " ".join(TWO)
