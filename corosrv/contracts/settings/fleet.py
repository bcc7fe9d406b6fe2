"""Settings of servers that work together: upstreams, Redis, and peers. Checked and frozen."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import (
    DAY,
    Check,
    at_least,
    between,
    empty_or,
    none_or,
    of_bytes,
    one_of,
    setting,
)

_NAMESPACE = Check(
    lambda text: re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) is not None,
    "must be 1 to 64 letters, digits, dots, hyphens and underscores",
)
_REDIS_URL = Check(
    lambda text: text.startswith(("redis://", "rediss://", "unix://", "redis+sentinel://")),
    "must begin with redis://, rediss://, unix:// or redis+sentinel://",
)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Settings of the Redis or Valkey server that several fronts share; times in seconds."""

    redis_url: str = setting(
        "",
        "URL of a Redis or Valkey server that several servers share, as redis://:PASSWORD@HOST:6379/0 (rediss:// with "
        "TLS, unix:///PATH, redis+sentinel://:PASSWORD@HOST:26379,HOST:26379/SERVICE/0): permits of upstreams, limits "
        "of API keys, groups, and answers under an Idempotency-Key",
        check=empty_or(_REDIS_URL),
        is_secret=True,
    )
    redis_password_file: str = setting(
        "", "path of a file with the password of Redis, in place of one in its URL; read again for each connection"
    )
    redis_namespace: str = setting(
        "default",
        "which servers belong together among those that use one Redis: all with the same word",
        check=_NAMESPACE,
    )
    redis_timeout: float = setting(
        1.0, "seconds in which Redis must answer a command; connections have half of it", check=between(0.05, 60)
    )

    def __post_init__(self) -> None:
        sources.check(self)
        if self.redis_password_file and "@" in self.redis_url:
            raise SettingsError("COROSRV_REDIS_URL has a user or password: leave out COROSRV_REDIS_PASSWORD_FILE")


REPLICA_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOKEN = Check(
    lambda text: not text or (len(text) >= 8 and text.isascii() and text.isprintable() and " " not in text),
    "must be at least 8 printable ASCII characters without spaces, or empty",
)
IS_ID = Check(
    lambda text: not text or REPLICA_ID.fullmatch(text) is not None,
    "must be 1 to 64 letters, digits, dots, dashes and underscores, or empty",
)


def new_replica_id() -> str:
    """Returns a name that no other replica has."""
    return secrets.token_hex(6)


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Settings of delegation between replicas, read once at the start."""

    peers: str = setting(
        "",
        "URL of another corosrv that answers what this one cannot, as http://host:8080 or, with the id that it must "
        "have, http://host:8080?id=NAME; may be given several times, in the environment with commas or spaces between",
    )
    peer_token: str = setting(
        "", "secret that all replicas share; without it no other replica is believed", check=TOKEN, is_secret=True
    )
    peer_url: str = setting(
        "",
        "URL at which other replicas reach this one, as http://10.0.0.5:8080; servers that have one and share a Redis, "
        "its namespace and the peers' token find each other as peers",
    )
    replica_id: str = setting("", "name of this replica among its peers; empty: a random one", check=IS_ID)
    delegate_on_full: bool = setting(
        False, "1: requests also go to peers while the queue here is full; 0: only for what is not served here"
    )
    delegate_max: int = setting(64, "requests that peers may be answering for this one", check=between(1, 65_536))

    def __post_init__(self) -> None:
        sources.check(self)
        if self.urls and not self.peer_token:
            raise SettingsError(
                "COROSRV_PEER_TOKEN must be set where there are peers: a secret that all replicas share"
            )
        if self.peer_url and not self.peer_token:
            raise SettingsError("COROSRV_PEER_URL needs COROSRV_PEER_TOKEN: a secret that all replicas share")

    @property
    def is_wanted(self) -> bool:
        """Returns True if this server has peers, or others may have it as one."""
        return bool(self.peer_token)

    @property
    def may_have_peers(self) -> bool:
        """Returns True if this server has peers, or may find some through Redis."""
        return bool(self.urls or self.peer_url)

    @property
    def urls(self) -> tuple[str, ...]:
        """Returns the peers that are named, each with its options."""
        return sources.split_words(self.peers.replace(" ", ","))


POLICIES = ("least_loaded", "power_of_two", "round_robin", "sticky", "prefix")


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """Settings of forwarding, read once at the start; times in seconds, sizes in bytes."""

    upstream: str = setting(
        "",
        "URL of another server of models that requests are forwarded to, with its options, as "
        "http://host:8080?concurrency=16&model=NAME&weight=2&api_key_env=VARIABLE&abort=sglang; may be given several "
        "times, in the environment with commas or spaces between",
    )
    elastic: bool = setting(
        False, "1: requests are taken though no upstream is named yet: those are added while the server runs"
    )
    upstream_policy: str = setting(
        "least_loaded",
        "which upstream gets a request: least_loaded, power_of_two (the less loaded of two), round_robin, sticky (the "
        "same for each session) or prefix (one that has read the beginning of the prompt before)",
        check=one_of(*POLICIES),
    )
    upstream_queue: int = setting(10_000, "requests that may wait for upstreams", check=between(0, 10_000_000))
    upstream_queue_bytes: int = setting(
        268_435_456, "bytes that the bodies of those that wait may take", check=of_bytes(1024)
    )
    upstream_patience: float = setting(
        30.0, "seconds that requests wait while no upstream is ready", check=between(0, DAY)
    )
    upstream_first_byte: float = setting(
        600.0, "seconds in which an upstream must begin its answer", check=between(0.1, DAY)
    )
    upstream_idle: float = setting(
        300.0, "seconds that an upstream may send nothing inside an answer", check=between(0.1, DAY)
    )
    upstream_spill: int | None = setting(
        None,
        "requests that may wait for a model served here before others go to upstreams that serve it as well; default: "
        "as many as it has slots",
        check=none_or(at_least(0)),
    )

    router_paths: bool = setting(
        False,
        "1: the paths of SGLang's router (/workers, /add_worker, /remove_worker, /list_workers, /get_loads, "
        "/abort_request) answer at this server's own port as well, to whoever has the token of mgmt_token_file",
    )

    def __post_init__(self) -> None:
        sources.check(self)

    @property
    def is_wanted(self) -> bool:
        """Returns True if requests are to be forwarded at all."""
        return bool(self.urls) or self.elastic

    @property
    def urls(self) -> tuple[str, ...]:
        """Returns the upstreams of the start, each with its options."""
        return sources.split_words(self.upstream.replace(" ", ","))
