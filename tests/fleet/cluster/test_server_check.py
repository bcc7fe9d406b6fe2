"""What is asked of a Redis server before it is relied on."""

from __future__ import annotations

import pytest

from corosrv.base.errors import SettingsError
from corosrv.fleet.cluster.connection import check_server, parse_info
from tests.support.redis_server import redis_server

GOOD = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1"}


def test_a_server_with_a_file_and_without_eviction_is_taken_without_a_word():
    assert check_server(GOOD) == []


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.1", "10.0.1"])
def test_every_version_from_6_2_on_is_taken(version: str):
    assert check_server(GOOD | {"redis_version": version}) == []


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8", "", "abc"])
def test_an_older_version_is_refused(version: str):
    with pytest.raises(SettingsError, match=r"Redis 6\.2 or later is needed"):
        check_server(GOOD | {"redis_version": version})


def test_a_replica_is_refused():
    with pytest.raises(SettingsError, match="is a replica"):
        check_server(GOOD | {"role": "slave"})


def test_a_server_without_a_file_is_warned_of_once():
    (warning,) = check_server(GOOD | {"aof_enabled": "0"})

    assert "append-only" in warning


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_real_server_that_evicts_is_refused(policy: str):
    with redis_server(maxmemory="10mb", maxmemory_policy=policy) as server, pytest.raises(SettingsError, match=policy):
        check_server(parse_info(server.command("INFO")))


def test_a_real_server_with_a_file_is_taken():
    with redis_server(appendonly="yes") as server:
        assert check_server(parse_info(server.command("INFO").replace("\r", ""))) == []
