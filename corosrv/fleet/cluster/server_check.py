"""Says what is wrong with a Redis server that cannot be relied on: its version, its role, its full memory."""

from __future__ import annotations

from collections.abc import Mapping

from corosrv.base.errors import SettingsError

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
            f"COROSRV_REDIS_URL: this Redis has maxmemory-policy {policy or 'unknown'}, which deletes calls and "
            "answers when its memory is full; set it to noeviction"
        )
    if info.get("aof_enabled") != "1":
        return [
            "Redis keeps no append-only file: what is queued and recorded there is lost when it ends (appendonly yes)"
        ]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
