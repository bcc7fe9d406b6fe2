"""References to objects: large values that calls pass to each other without copying them."""

from __future__ import annotations

import msgspec


class ObjRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """Refers to one immutable object. It tells no path: only the store that made it can find the content."""

    id: str
    size: int  # bytes
    sha256: str  # of the content, in hexadecimal
    content_type: str
    expires_ms: int  # Unix time
    key: str = ""
    replica: str = ""  # whose store has it; empty: this one's
