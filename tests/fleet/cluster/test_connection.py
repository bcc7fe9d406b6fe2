"""Commands to a real Redis, also one that dies or stands still."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import gevent
import pytest

from corosrv.base.errors import RedisRefused, RedisUnavailable, SettingsError
from corosrv.fleet.cluster.connection import N_CONNECTIONS, RedisClient, public_address
from tests.support.patched import run_patched
from tests.support.redis_server import RedisServer, redis_server


def test_a_reply_is_as_redis_sent_it(client: RedisClient):
    client.execute("SET", "a", 1)

    assert client.execute("GET", "a") == b"1"
    assert client.execute("GET", "b") is None


def test_several_commands_have_their_replies_in_order_and_a_refused_one_its_error(client: RedisClient):
    first, refused, last = client.execute_all([("SET", "a", "x"), ("LPUSH", "a", 1), ("GET", "a")])

    assert (first, last) == (b"OK", b"x")
    assert isinstance(refused, RedisRefused)
    assert refused.word == "WRONGTYPE"


def test_no_commands_need_no_redis():
    assert RedisClient("redis://127.0.0.1:1").execute_all([]) == []


def test_a_refused_command_raises_what_redis_said(client: RedisClient):
    with pytest.raises(RedisRefused, match="ERR unknown command") as refusal:
        client.execute("NONSENSE")

    assert refusal.value.word == "ERR"
    assert client.health.is_up


def test_a_script_runs_by_its_hash_and_by_its_text_where_redis_has_forgotten_it(client: RedisClient):
    script = client.script("return {KEYS[1], ARGV[1]}")

    for _ in range(2):
        assert script.run(["k"], ["v"]) == [b"k", b"v"]
    client.execute("SCRIPT", "FLUSH")
    assert script.run(["k"], ["v"]) == [b"k", b"v"]


def test_a_unix_socket_serves_as_well(redis: RedisServer):
    with closing(RedisClient(redis.unix_url)) as client:
        assert client.execute("ECHO", "hi") == b"hi"


def test_a_password_comes_from_a_file_and_may_change(tmp_path: Path):
    file = tmp_path / "password"
    with redis_server(requirepass="second") as server:
        client = RedisClient(f"redis://127.0.0.1:{server.port}/0", 5, str(file))
        with pytest.raises(RedisUnavailable, match="No such file"):
            client.execute("PING")
        file.write_text("first\n")
        assert not client.ping()
        file.write_text("second\n")
        assert client.ping()
        blocking = client.open_blocking(1)

        assert client.execute("PING") == b"PONG"
        assert blocking.execute("PING") == b"PONG"
        blocking.close()
        client.close()


def test_a_blocking_read_waits_longer_than_a_command_may(client: RedisClient, redis: RedisServer):
    patient = RedisClient(redis.url, timeout=0.5).open_blocking(longest=5)

    assert patient.execute("BLPOP", "nothing", 0.8) is None
    patient.close()


def test_messages_are_received_one_by_one(client: RedisClient):
    connection = client.open_blocking(5)
    connection.send("SUBSCRIBE", "news")
    assert connection.receive(5) == [b"subscribe", b"news", 1]

    client.execute("PUBLISH", "news", "a")

    assert connection.receive(5) == [b"message", b"news", b"a"]
    assert connection.receive(0.01) is None
    connection.close()


def ask_from_many_greenlets(url: str) -> list[int]:
    client = RedisClient(url, timeout=20)
    reader = client.open_blocking(20)
    waiting = gevent.spawn(reader.execute, "BLPOP", "end", 20)
    greenlets = [gevent.spawn(client.execute, "INCR", "n") for _ in range(500)]
    gevent.joinall(greenlets, raise_error=True)
    clients = client.execute("CLIENT", "LIST").count(b"\n")
    client.execute("RPUSH", "end", "x")
    assert waiting.get() == [b"end", b"x"]
    return [int(client.execute("GET", "n")), clients]


def test_many_greenlets_share_few_connections_while_another_waits_in_redis(own_redis: RedisServer):
    n, connections = run_patched(ask_from_many_greenlets, own_redis.url)

    assert (n, connections) == (500, N_CONNECTIONS + 1)


def kill_greenlets_that_read(url: str) -> Any:
    client = RedisClient(url, timeout=20)
    for _ in range(5):
        reader = client.open_blocking(20)
        greenlets = [gevent.spawn(reader.execute, "BLPOP", "end", 20)]
        greenlets += [gevent.spawn(client.execute, "ECHO", "old") for _ in range(20)]
        gevent.sleep(0)
        gevent.sleep(0)
        gevent.killall(greenlets)
    return [client.execute("ECHO", "new").decode() for _ in range(10)] + [reader.execute("ECHO", "new").decode()]


def test_greenlets_that_are_killed_leave_no_reply_for_others(redis: RedisServer):
    assert run_patched(kill_greenlets_that_read, redis.url) == ["new"] * 11


def ask_a_server_that_stands_still(url: str) -> Any:
    client = RedisClient(url, timeout=0.5)
    began = time.monotonic()
    greenlets = [gevent.spawn(_outcome, client) for _ in range(50)]
    gevent.joinall(greenlets)
    return [time.monotonic() - began, sorted({greenlet.value for greenlet in greenlets})]


def _outcome(client: RedisClient) -> str:
    try:
        client.execute("PING")
    except RedisUnavailable:
        return "unavailable"
    return "answered"


def test_a_server_that_stands_still_makes_nobody_wait_for_long(own_redis: RedisServer):
    own_redis.pause()

    seconds, outcomes = run_patched(ask_a_server_that_stands_still, own_redis.url)

    assert outcomes == ["unavailable"]
    assert seconds < 10  # not 50 time-outs one after the other


@pytest.fixture
def own_client(own_redis: RedisServer) -> Iterator[RedisClient]:
    """A client of a server of its own, which may die before the client is closed."""
    with closing(RedisClient(own_redis.url, timeout=5)) as client:
        yield client


def test_a_server_that_was_killed_is_away_and_commands_fail_at_once(own_redis: RedisServer, own_client: RedisClient):
    own_client.execute("SET", "a", 1)
    own_redis.kill()

    with pytest.raises(RedisUnavailable, match="away"):
        own_client.execute("GET", "a")

    assert not own_client.health.is_up
    own_redis.start()
    with pytest.raises(RedisUnavailable, match="refused"):  # without a try: only the probe finds out
        own_client.execute("GET", "a")
    own_client.ping()
    assert own_client.execute("GET", "a") is None


def test_connections_of_a_former_life_serve_the_next(own_redis: RedisServer, own_client: RedisClient):
    with closing(own_client.open_blocking(1)) as reader:
        own_client.execute("SET", "a", 1)
        reader.execute("PING")
        own_redis.kill()
        own_redis.start()

        assert own_client.execute("GET", "a") is None
        with pytest.raises(RedisUnavailable):
            reader.execute("PING")
        assert own_client.ping()
        assert reader.execute("ECHO", "x") == b"x"


def watch_a_server(url: str, seconds: float) -> list[str]:
    client = RedisClient(url)
    changes: list[str] = []
    client.health.on_change(lambda is_up: changes.append("up" if is_up else "down"))
    client.ping()
    client.execute("SET", "ready", 1)
    client.start()
    with gevent.Timeout(seconds, False):
        while changes != ["up", "down", "up"]:
            gevent.sleep(0.01)
    client.close()
    return changes


def test_listeners_hear_that_redis_is_away_and_back_though_nobody_asks(own_redis: RedisServer):
    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(run_patched, watch_a_server, own_redis.url, 40.0)
        deadline = time.monotonic() + 30
        while ":1" not in own_redis.command("EXISTS", "ready"):
            assert time.monotonic() < deadline
        own_redis.kill()
        own_redis.start()

        assert changes.result(60) == ["up", "down", "up"]


def test_a_wrong_password_is_told_without_being_shown():
    with redis_server(requirepass="right") as server:
        wrong = server.url.replace("right", "s3cret")
        with closing(RedisClient(wrong)) as client, pytest.raises(RedisRefused, match="password") as error:
            client.execute("PING")

    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("url", ["redis://:s3cret@host:port/0", "redis://:s3cret@[::1/0", "http://:s3cret@host"])
def test_a_url_that_is_none_is_refused_without_being_shown(url: str):
    with pytest.raises(SettingsError, match="COROSRV_REDIS_URL") as error:
        RedisClient(url)

    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cret@host:7000/1?password=s3cret", "host:7000"),
        ("rediss://host", "host:6379"),
        ("redis://", "localhost:6379"),
        ("unix://:s3cret@/run/redis.sock?db=1", "/run/redis.sock"),
        ("redis://:s3cret@host:port", "a Redis server"),
    ],
)
def test_an_address_for_people_has_no_secret(url: str, shown: str):
    assert public_address(url) == shown
