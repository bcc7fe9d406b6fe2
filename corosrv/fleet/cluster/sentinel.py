"""Reads URLs that name sentinels, and makes connections to the Redis server that these know as the primary."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

SENTINEL = "redis+sentinel://"


def is_sentinel(url: str) -> bool:
    """Tells whether a URL names sentinels, which know the primary, and not the server itself."""
    return url.startswith(SENTINEL)


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """Holds the parts of a URL with sentinels. User and password are those of Redis, and of the sentinels."""

    addresses: Sequence[tuple[str, int]]
    service: str
    database: int
    username: str | None
    password: str | None

    @property
    def public_address(self) -> str:
        """Names the service and its sentinels: no password."""
        return f"{self.service} by {','.join(f'{host}:{port}' for host, port in self.addresses)}"

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Reads `redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/0`. Raises ValueError."""
        authority, _, path = url.removeprefix(SENTINEL).partition("/")
        credentials, _, hosts = authority.rpartition("@")
        username, _, password = credentials.partition(":")
        service, _, database = path.partition("/")
        parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
        if not service or "?" in path or not all(part.hostname for part in parts):
            raise ValueError("a host or the name of the service is missing")
        return cls(
            [(part.hostname or "", part.port or 26379) for part in parts],
            unquote(service),
            int(database or 0),
            unquote(username) or None,
            unquote(password) or None,
        )


def sentinel_pool(url: str, n_connections: int, options: dict[str, Any]) -> Any:
    """Makes a pool whose connections ask the sentinels for the primary. It does not wait for a free one.

    `options`: those of each connection, to Redis and to the sentinels. Raises ValueError for a URL that is none.
    """
    parts = SentinelUrl.parse(url)
    own = {} if "credential_provider" in options else {"username": parts.username, "password": parts.password}
    options = {**options, **own}
    sentinel = importlib.import_module("redis.sentinel").Sentinel(parts.addresses, sentinel_kwargs=options)
    return sentinel.master_for(
        parts.service, db=parts.database, max_connections=n_connections, **options
    ).connection_pool
