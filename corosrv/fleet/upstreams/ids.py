"""Names upstreams: by their URLs, so that all fronts which share an upstream know it by one name."""

from __future__ import annotations

from collections.abc import Container
from hashlib import blake2b
from itertools import count

_SIZE = 6  # bytes of the hash: among a thousand upstreams two are alike once in half a billion servers
_MARK = "."  # before the number of an entry that is not the first of its URL


def upstream_id(url: str, ids: Container[str]) -> str:
    """Returns the id of an upstream at this URL that is not among these.

    The first entry of a URL has the same id in every process; one that comes while an older drains has a number behind.
    """
    first = f"upstream-{blake2b(url.encode(), digest_size=_SIZE).hexdigest()}"
    later = (f"{first}{_MARK}{number}" for number in count(2))
    return first if first not in ids else next(id for id in later if id not in ids)


def rank_name(id: str) -> str:
    """Returns the name by which an upstream is ranked for sessions: that of its URL, whichever entry of it this is."""
    return id.partition(_MARK)[0]
