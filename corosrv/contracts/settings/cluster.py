"""Settings of what several servers share through Redis."""

from __future__ import annotations

import re
from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import Check, between, empty_or, one_of
from corosrv.contracts.settings.sources import setting

_NAMESPACE = Check(
    lambda text: re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) is not None,
    "must be 1 to 64 letters, digits, dots, hyphens and underscores",
)
_REDIS_URL = Check(
    lambda text: text.startswith(("redis://", "rediss://", "unix://")), "must begin with redis://, rediss:// or unix://"
)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Settings of the Redis or Valkey server that several fronts share; times in seconds."""

    redis_url: str = setting(
        "",
        "URL of a Redis or Valkey server that several servers share, as redis://:PASSWORD@HOST:6379/0 (rediss:// with "
        "TLS, unix:///PATH): what they serve, and answers under an Idempotency-Key",
        check=empty_or(_REDIS_URL),
        is_secret=True,
    )
    redis_namespace: str = setting(
        "default",
        "which servers belong together among those that use one Redis: all with the same word",
        check=_NAMESPACE,
    )
    redis_timeout: float = setting(
        1.0, "seconds in which Redis must answer a command; connections have half of it", check=between(0.05, 60)
    )
    redis_fallback: str = setting(
        "local",
        "what happens to calls while Redis is away: `local` runs those that this server can run itself, `refuse` none",
        check=one_of("local", "refuse"),
    )

    def __post_init__(self) -> None:
        sources.check(self)
