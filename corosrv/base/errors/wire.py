"""Defines errors between two processes."""

from __future__ import annotations

from corosrv.base.errors.base import CorosrvError


class WireError(CorosrvError):
    """Two processes that share a channel cannot talk to each other."""


class BadFrame(WireError):
    """The received bytes are no message; what follows them cannot be understood either."""


class ProtocolError(WireError):
    """A message arrived that is not allowed, or not allowed now; the sender is broken."""


class RowsNotFinite(ProtocolError):
    """The encoder wrote rows with numbers that are not finite; they must not reach the decode loop."""


class FrameTooLarge(WireError):
    """The message is larger than the channel carries; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes, where {limit} are allowed")


class ChannelClosed(WireError):
    """The other end is closed, or this one is."""
