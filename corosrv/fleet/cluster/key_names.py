"""Names of all that the servers of one namespace keep in Redis: `corosrv:{namespace}:kind:part:part`."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

_LONGEST_PART = 200  # bytes of one part as it stands; a longer one is hashed


class KeyNames:
    """Makes the names of all that the servers of one namespace keep in Redis.

    The braces around the namespace put all of it into one slot of a Redis cluster, so that scripts may use several.
    """

    def __init__(self, namespace: str) -> None:
        self._prefix = f"corosrv:{{{namespace}}}:"

    def name(self, kind: str, *parts: str) -> str:
        """Returns the name of one kind of thing, whatever characters its parts have; names of different parts differ.

        A part of more than 200 bytes stands there as its hash.
        """
        return self._prefix + ":".join((kind, *map(_part, parts)))

    def pattern(self, kind: str) -> str:
        """Returns what SCAN matches all keys of one kind with that have parts."""
        return f"{self._prefix}{kind}:*"


def _part(text: str) -> str:
    escaped = quote(text, safe=" !#$&'()+,./;<=>@^_`{|}~-", errors="surrogatepass")
    if len(escaped) <= _LONGEST_PART:
        return escaped
    return "%" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
