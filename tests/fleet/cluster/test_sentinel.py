"""Redis by way of sentinels: who the primary is, also after another has taken its place."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from corosrv.base.errors import RedisUnavailable, SettingsError
from corosrv.fleet.cluster.connection import RedisClient, public_address
from corosrv.fleet.cluster.health import SentinelUrl
from tests.support.redis_server import RedisServer, redis_program, redis_server
from tests.support.waiting import eventually

URL = "redis+sentinel://me:s%2Fcret@one:1,two/main/3"


@contextmanager
def sentinel_of(redis: RedisServer) -> Iterator[int]:
    """Runs a sentinel that watches a server under the name `main`; yields its port."""
    folder = Path(tempfile.mkdtemp(prefix="corosrv-sentinel-"))
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = int(reserved.getsockname()[1])
        (folder / "conf").write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {redis.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        process = subprocess.Popen([redis_program(), str(folder / "conf"), "--sentinel"], stdout=subprocess.DEVNULL)
        try:
            yield port
        finally:
            process.kill()
            process.wait(20)
            shutil.rmtree(folder, ignore_errors=True)


def test_a_url_names_sentinels_the_service_and_the_database():
    assert SentinelUrl.parse(URL) == SentinelUrl([("one", 1), ("two", 26379)], "main", 3, "me", "s/cret")
    assert public_address(URL) == "main by one:1,two:26379"


@pytest.mark.parametrize("url", ["redis+sentinel://h", "redis+sentinel:///main", "redis+sentinel://h/main/x?y=1"])
def test_a_url_without_a_host_or_a_service_is_refused_without_being_shown(url: str):
    with pytest.raises(SettingsError, match="is no URL") as refused:
        RedisClient(url.replace("//", "//:s3cret@"))
    assert "s3cret" not in str(refused.value)


def test_the_primary_is_found_also_after_a_replica_has_taken_its_place():
    with (
        redis_server() as first,
        redis_server(replicaof=f"127.0.0.1 {first.port}") as second,
        sentinel_of(first) as port,
    ):
        client = RedisClient(f"redis+sentinel://127.0.0.1:{port}/main/0", timeout=2)

        def is_set(value: str) -> bool:
            with suppress(RedisUnavailable):
                client.ping()
                return bool(client.execute("SET", "key", value) == b"OK")
            return False

        eventually(lambda: is_set("before"), what="the primary")
        eventually(lambda: "before" in second.command("GET", "key"), what="the replica")
        eventually(lambda: f":{second.port}" in client_info(port), what="the replica is known")
        first.kill()

        eventually(lambda: is_set("after"), within=60, what="the new primary")
        assert "after" in second.command("GET", "key")
        client.close()


def client_info(port: int) -> str:
    """Returns what the sentinel knows of replicas."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"SENTINEL REPLICAS main\r\n")
        return connection.recv(65536).decode()
