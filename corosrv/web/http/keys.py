"""The API keys that are let in, as digests. Knows no request, so that every front can ask it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class KeyRing:
    """Knows keys by their digests, which are compared in constant time. Without any, nobody needs a key."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> KeyRing:
        return cls(digest(key.encode("utf-8", "surrogateescape")) for key in keys)

    @property
    def digests(self) -> tuple[bytes, ...]:
        return self._digests

    @property
    def are_needed(self) -> bool:
        return bool(self._digests)

    def caller(self, key: bytes) -> str | None:
        """Returns a name for the caller, made from the key; None for an unknown key."""
        candidate = digest(key)
        # All are compared, so that the time taken does not tell which one is near.
        is_known = sum(hmac.compare_digest(candidate, known_digest) for known_digest in self._digests)
        return candidate.hex() if is_known else None


def digest(key: bytes) -> bytes:
    """Digests the key in UTF-8; bytes that are not UTF-8 are Latin-1, in which browsers send what fits into it."""
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        key = key.decode("latin-1").encode("utf-8")
    return hashlib.sha256(key).digest()
