"""Errors in the shape of predictions."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import CorosrvError, InvalidInput

_FAILED = (409, 503)  # these say so in a member of their own


def body(error: CorosrvError) -> dict[str, Any]:
    """Makes `{"detail": [...]}` where fields are at fault, else `{"error": text}`, for some with `status: failed`."""
    if isinstance(error, InvalidInput):
        return {"detail": error.errors}
    return {"error": str(error)} | ({"status": "failed"} if error.status in _FAILED else {})
