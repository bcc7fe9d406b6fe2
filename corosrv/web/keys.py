"""The API keys that are let in, as digests. Knows no request, so that every front can ask it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

PEER_CALLER = "X-Corosrv-Caller"  # in a request that a peer passes on: the name that was made from its client's key


class KeyRing:
    """Knows keys by their digests. Without any, nobody needs a key."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = frozenset(digests)
        self.are_needed = bool(self._digests)

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> KeyRing:
        return cls(digest(key.encode("utf-8", "surrogateescape")) for key in keys)

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(self._digests)

    def caller(self, key: bytes) -> str | None:
        """Returns a name for the caller, made from the key; None for an unknown key."""
        candidate = digest(key)
        return candidate.hex() if candidate in self._digests else None


def key_of(authorization: str, x_api_key: str) -> bytes | None:
    """Returns the key in these two fields, of which the first goes before; None without one. Texts are as WSGI's."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        key = x_api_key
    return key.encode("latin-1", "replace") if key else None


def digest(key: bytes) -> bytes:
    """Digests the key in UTF-8; bytes that are not UTF-8 are Latin-1, in which browsers send what fits into it.

    Digests may be looked up in a table. How long that takes can tell how the digest of a guess begins, compared with
    those that are there; no guess can be steered by that, for each one's digest is unlike that of any other.
    """
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        key = key.decode("latin-1").encode("utf-8")
    return hashlib.sha256(key).digest()
