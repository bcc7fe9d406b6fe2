"""Runs commands on the Redis server that several fronts share, through redis-py, an optional dependency.

Connections work under gevent, and a few serve all greenlets. A URL is shown without what is secret in it.
`check_server` says what is wrong with a server that cannot be relied on: its version, its role, its full memory.
"""

from __future__ import annotations

import hashlib
import importlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import gevent
import gevent.queue
from gevent import monkey
from gevent.lock import BoundedSemaphore

from corosrv.base.errors import RedisRefused, RedisUnavailable, SettingsError
from corosrv.fleet.cluster.health import LinkHealth, LinkProbe, SentinelUrl, is_sentinel, sentinel_pool


def public_address(url: str) -> str:
    """Returns the host and port of a Redis URL, or the path of its socket: no password, and no parameters."""
    try:
        if is_sentinel(url):
            return SentinelUrl.parse(url).public_address
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return parts.path
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "a Redis server"


_NO_URL = (
    "COROSRV_REDIS_URL is no URL of a Redis server, as redis://:PASSWORD@HOST:6379/0 (a password's special characters "
    "are written as %XX), or of sentinels, as redis+sentinel://:PASSWORD@HOST:26379,HOST:26379/SERVICE/0"
)


def load_redis() -> Any:
    """Returns the module redis. Raises SettingsError where it is not installed."""
    try:
        redis = importlib.import_module("redis")
        importlib.import_module("redis.backoff")
        importlib.import_module("redis.connection")
    except ImportError:
        raise SettingsError("COROSRV_REDIS_URL needs redis-py: pip install 'corosrv[redis]'") from None
    return redis


def is_cooperative() -> bool:
    """Tells whether sockets of this process wait through gevent."""
    return bool(monkey.is_module_patched("socket"))


class PasswordFile:
    """A password that is read from a file for each new connection, so that it can be changed. For redis-py."""

    def __init__(self, path: str) -> None:
        self._path = path

    def get_credentials(self) -> tuple[str]:
        """Returns the password alone. Raises redis-py's ConnectionError, after which it closes the connection."""
        try:
            return (Path(self._path).read_bytes().decode("utf-8", "replace").strip(),)
        except OSError as error:
            raise load_redis().ConnectionError(f"the file with its password cannot be read: {error}") from None


def make_pool(
    url: str, n_connections: int, timeout: float, command_timeout: float, password: PasswordFile | None = None
) -> Any:
    """Makes a pool of connections, which waits `timeout / 2` seconds for a free one and as long to connect.

    Its connections wait `command_timeout` seconds for each answer, and send nothing a second time. Raises SettingsError
    for a URL that is none, in words that do not have it.
    """
    redis = load_redis()
    options = {
        "socket_connect_timeout": timeout / 2,
        "socket_timeout": command_timeout,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "protocol": 2,
        **({} if password is None else {"credential_provider": password}),
    }
    queue_class = gevent.queue.LifoQueue if is_cooperative() else queue.LifoQueue
    try:
        if is_sentinel(url):
            return sentinel_pool(url, n_connections, options)
        return redis.BlockingConnectionPool.from_url(
            url, max_connections=n_connections, timeout=timeout / 2, queue_class=queue_class, **options
        )
    except ValueError:  # whose words may hold the password
        raise SettingsError(_NO_URL) from None


N_CONNECTIONS = 4  # for commands; the probe and each blocking read have their own

_WORDS = {
    "ExecAbortError": "EXECABORT",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
}

Word: TypeAlias = "str | bytes | int | float"


class RedisClient:
    """Runs commands on Redis, on few connections, however many greenlets ask. Belongs to one process, and its hub.

    A command is sent once: one that failed may have run. While Redis is known to be away commands fail at once, and
    otherwise within two and a half time-outs. Replies are as Redis sent them: bytes, int, None and lists of these.
    """

    def __init__(self, url: str, timeout: float = 1.0, password_file: str = "") -> None:
        """`timeout`: seconds for a command; as many for a free connection, and half as many for connecting.
        `password_file`: see PasswordFile; empty: the URL has what is needed.

        Connects with the first command. Raises SettingsError where redis-py is missing or the URL is none.
        """
        self._redis = load_redis()
        self._url = url
        self._timeout = timeout
        self._password = PasswordFile(password_file) if password_file else None
        self._pool = make_pool(url, N_CONNECTIONS, timeout, timeout, self._password)
        self._free = BoundedSemaphore(N_CONNECTIONS) if is_cooperative() else threading.BoundedSemaphore(N_CONNECTIONS)
        self.address = public_address(url)
        self.is_refused = False  # it answers, and lets nobody in, or does not serve yet
        self.health = LinkHealth(self.address)
        self._pinging = BlockingConnection(self, 0)
        self._probe = LinkProbe(self.health, self.ping)

    def start(self) -> None:
        """Begins to watch whether Redis answers, which needs a hub."""
        self._probe.start()

    def close(self) -> None:
        """Stops watching, and closes the connections."""
        self._probe.stop()
        self._pinging.close()
        self._pool.disconnect()

    def ping(self) -> bool:
        """Asks Redis whether it answers, also while it is known to be away, and records it. Raises nothing.

        It keeps a connection of its own, so that it notices a Redis that was away between two questions.
        """
        try:
            self._pinging.execute("PING")
        except RedisUnavailable:
            self.health.has_failed = True
            return False
        except (
            RedisRefused
        ) as error:  # it answers, but nothing can be done there: it loads its data, or wants a password
            self.health.fail(str(error))
            self.is_refused = True
            return False
        self.is_refused = False
        return True

    def execute(self, *words: Word) -> Any:
        """Runs one command and returns its reply. Waits for it. Raises RedisUnavailable and RedisRefused."""
        self._check()
        return self._run(lambda connection: _call(connection, words))

    def execute_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Runs several commands in one round trip, not as a transaction; a refused one has its RedisRefused for reply.

        Raises RedisUnavailable.
        """
        self._check()
        return self._run(lambda connection: self._call_all(connection, commands)) if commands else []

    def script(self, text: str) -> RedisScript:
        """Makes a script of Lua text, which Redis keeps from its first run on."""
        return RedisScript(self, text)

    def open_blocking(self, longest: float) -> BlockingConnection:
        """Makes a connection for reads that wait up to `longest` seconds in Redis. Whoever opens it closes it."""
        return BlockingConnection(self, longest)

    def _check(self) -> None:
        if not self.health.is_up and (self.health.n_losses or self.health.has_failed):
            raise RedisUnavailable(f"Redis is away: {self.health.reason}")

    def _run(self, call: Callable[[Any], Any]) -> Any:
        if not self._free.acquire(timeout=self._timeout):
            raise RedisUnavailable("too many commands wait for Redis")
        try:
            with self.errors(), self.limit():
                connection = self._pool.get_connection()
                try:
                    reply = call(connection)
                finally:
                    self._pool.release(connection)
        finally:
            self._free.release()
        self.health.succeed()
        return reply

    def limit(self) -> Any:
        """Bounds everything, looking up the host's name included, which has no time-out of its own."""
        if not is_cooperative():
            return nullcontext()
        return gevent.Timeout(1.5 * self._timeout, self._redis.TimeoutError("nothing within the time-out"))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the errors of redis-py into ours, and records that Redis is away."""
        try:
            yield
        except self._redis.exceptions.AuthenticationError as error:  # says nothing of the password itself
            reason = f"it refuses the user or password ({error})"
            self.health.fail(reason)
            raise RedisRefused(f"Redis cannot be used: {reason}", "NOAUTH") from None
        except (self._redis.ConnectionError, self._redis.TimeoutError, OSError) as error:
            reason = str(error)
        except self._redis.RedisError as error:
            raise _refusal(error) from None
        else:
            return
        self.health.fail(reason)
        raise RedisUnavailable(f"Redis is away: {reason}") from None

    def _call_all(self, connection: Any, commands: Sequence[Sequence[Word]]) -> list[Any]:
        connection.send_packed_command(connection.pack_commands(commands))
        return [self._reply(connection) for _ in commands]

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except (self._redis.ConnectionError, self._redis.TimeoutError):
            raise
        except self._redis.ResponseError as error:
            return _refusal(error)

    def make_connection(self, longest: float) -> Any:
        """Makes a connection of redis-py outside the pool, for BlockingConnection: reads wait `longest` seconds."""
        return make_pool(self._url, 1, self._timeout, longest + self._timeout, self._password).make_connection()


class BlockingConnection:
    """Holds a connection of its own for reads that wait in Redis, as XREAD with BLOCK. Belongs to one greenlet.

    After an error it connects anew with the next command. A greenlet that is killed while it reads leaves no reply
    behind for the next: the connection is closed then.
    """

    def __init__(self, client: RedisClient, longest: float) -> None:
        self._client = client
        self._connection = client.make_connection(longest)
        self._is_open = False

    def execute(self, *words: Word) -> Any:
        """Runs one command and returns its reply, which may take as long as the connection was opened for.

        Raises RedisUnavailable and RedisRefused.
        """
        with self._client.errors():
            self._connect()
            reply = _call(self._connection, words)
        self._client.health.succeed()
        return reply

    def send(self, *words: Word) -> None:
        """Sends a command whose replies receive() reads, as SUBSCRIBE. Raises RedisUnavailable."""
        with self._client.errors():
            self._connect()
            self._connection.send_command(*words)

    def receive(self, timeout: float) -> Any:
        """Returns the next reply or message; None if there is none within `timeout` seconds.

        Raises RedisUnavailable and RedisRefused.
        """
        if not self._is_open:
            raise RedisUnavailable("the connection to Redis was lost")
        try:
            with self._client.errors():
                if not self._connection.can_read(timeout=timeout):
                    return None
                return self._connection.read_response()
        except RedisUnavailable:
            self._is_open = False
            raise

    def _connect(self) -> None:
        self._is_open = False
        with self._client.limit():
            self._connection.connect()
        self._is_open = True

    def close(self) -> None:
        """Closes the connection; the next command opens it again."""
        self._is_open = False
        self._connection.disconnect()


class RedisScript:
    """Runs a script in Redis: by its hash, and by its text where Redis does not know it, as after a restart."""

    def __init__(self, client: RedisClient, text: str) -> None:
        self._client = client
        self._text = text
        self._hash = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self, keys: Sequence[str], arguments: Sequence[Word] = ()) -> Any:
        """Runs the script and returns its reply. Raises RedisUnavailable and RedisRefused."""
        try:
            return self._client.execute("EVALSHA", self._hash, len(keys), *keys, *arguments)
        except RedisRefused as error:
            if error.word != "NOSCRIPT":
                raise
        return self._client.execute("EVAL", self._text, len(keys), *keys, *arguments)

    def run_all(self, calls: Sequence[tuple[Sequence[str], Sequence[Word]]]) -> list[Any]:
        """Runs the script for each of these keys and arguments, in one round trip once Redis knows it.

        One that is refused has its RedisRefused for reply. Raises RedisUnavailable.
        """
        commands = [("EVALSHA", self._hash, len(keys), *keys, *arguments) for keys, arguments in calls]
        replies = self._client.execute_all(commands)
        unknown = [place for place, reply in enumerate(replies) if getattr(reply, "word", "") == "NOSCRIPT"]
        texts = [("EVAL", self._text, *commands[place][2:]) for place in unknown]
        for place, reply in zip(unknown, self._client.execute_all(texts), strict=True):
            replies[place] = reply
        return replies


def _call(connection: Any, words: Sequence[Word]) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def _refusal(error: Exception) -> RedisRefused:
    """Makes our error of redis-py's, which has the first word of some replies in its class, and not in its text."""
    word, _, words = str(error).partition(" ")
    if (by_class := _WORDS.get(type(error).__name__)) is not None:
        word, words = by_class, str(error)
    elif not word.isupper():
        word, words = "ERR", str(error)
    return RedisRefused(f"Redis refused a command: {word} {words}", word)


OLDEST = (6, 2)


def parse_info(text: str) -> dict[str, str]:
    """Returns the fields of the reply to INFO."""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


def check_server(info: Mapping[str, str]) -> list[str]:
    """Returns what an operator should know of a server that may be used, from its INFO.

    Raises SettingsError for one that may not: it is too old, throws away what it was given, or takes no writes.
    """
    version = info.get("redis_version", "")
    if _numbers(version) < OLDEST:
        raise SettingsError(f"COROSRV_REDIS_URL: Redis 6.2 or later is needed, and this is {version or 'unknown'}")
    if info.get("role", "master") != "master":
        raise SettingsError("COROSRV_REDIS_URL: this Redis is a replica, which takes no writes; name its primary")
    policy = info.get("maxmemory_policy", "")
    if policy != "noeviction":
        raise SettingsError(
            f"COROSRV_REDIS_URL: this Redis has maxmemory-policy {policy or 'unknown'}, which deletes permits and "
            "answers when its memory is full; set it to noeviction"
        )
    if info.get("aof_enabled") != "1":
        return [
            "Redis keeps no append-only file: answers under idempotency keys are lost when it ends (appendonly yes)"
        ]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
