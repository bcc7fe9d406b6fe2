"""Settings of what servers share through Redis."""

from __future__ import annotations

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import ClusterSettings

MODEL = {"COROSRV_MODEL": "synthetic:"}


def test_without_a_url_nothing_is_shared():
    assert settings.load(environ=MODEL).cluster is None


@pytest.mark.parametrize(
    "url", ["redis://h:1/0", "rediss://u:p@h", "unix:///run/redis.sock", "redis+sentinel://h:26379/main/0"]
)
def test_a_url_makes_a_server_share(url: str):
    chosen = settings.load(environ={**MODEL, "COROSRV_REDIS_URL": url})

    assert chosen.cluster == ClusterSettings(redis_url=url)


def test_a_wrong_url_is_refused_without_being_shown():
    with pytest.raises(SettingsError, match="COROSRV_REDIS_URL must begin with") as error:
        ClusterSettings(redis_url="http://:s3cret@h")

    assert "s3cret" not in str(error.value)


def test_a_password_stands_in_one_place():
    assert ClusterSettings(redis_url="redis://h", redis_password_file="/secret").redis_password_file == "/secret"
    with pytest.raises(SettingsError, match="COROSRV_REDIS_PASSWORD_FILE") as error:
        ClusterSettings(redis_url="redis://:s3cret@h", redis_password_file="/secret")

    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("namespace", ["", "a b", "a:b", "{a}", "x" * 65, "é"])
def test_a_namespace_is_a_plain_word(namespace: str):
    with pytest.raises(SettingsError, match="COROSRV_REDIS_NAMESPACE must be"):
        ClusterSettings(redis_namespace=namespace)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 100])
def test_a_timeout_is_neither_nothing_nor_for_ever(timeout: float):
    with pytest.raises(SettingsError, match="COROSRV_REDIS_TIMEOUT must be"):
        ClusterSettings(redis_timeout=timeout)
