"""Defines errors of objects, which calls pass to each other by reference."""

from __future__ import annotations

from corosrv.base.errors.base import CorosrvError, ErrorKind
from corosrv.base.errors.refused import NotFound, Refused


class ObjectNotFound(NotFound):
    """The store has no such object, or not for this caller."""

    def __init__(self, object_id: str) -> None:
        super().__init__(f"there is no object {object_id[:80]!r} here", "object_ref", "object_not_found")


class ObjectExpired(Refused):
    """The object was here, and its time is over or its place was needed."""

    status = 410
    kind = ErrorKind.NOT_FOUND

    def __init__(self, object_id: str) -> None:
        super().__init__(f"the object {object_id[:80]!r} has expired", "object_ref", "object_expired")


class ObjectTooLarge(Refused):
    """The object is larger than the store takes."""

    status = 413
    kind = ErrorKind.TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the object has {size} bytes, where {limit} are allowed", None, "object_too_large")


class StoreFull(CorosrvError):
    """The objects in use fill the store."""

    status = 507
    kind = ErrorKind.UNAVAILABLE
    code = "store_full"
    retry_after = 5

    def __init__(self, limit: int) -> None:
        super().__init__(f"the objects in use fill the {limit} bytes that the store has; try again later")
