"""Defines the messages of the process that downloads, one JSON object a line."""

from __future__ import annotations

import msgspec

from corosrv.models.hub.pull import PulledModel


class PullProgress(msgspec.Struct, tag="progress"):
    """Tells how many bytes are there, and of how many; 0 of 0 before the hub has answered."""

    bytes: int = 0
    total: int = 0

    def __str__(self) -> str:
        if not self.total:
            return "the hub is asked"
        percent = 100 * self.bytes // self.total
        return f"{self.bytes / 1e6:.0f} of {self.total / 1e6:.0f} MB ({percent} %)"


class Pulled(msgspec.Struct, tag="pulled"):
    """The files are there."""

    model: PulledModel


class PullFailed(msgspec.Struct, tag="failed"):
    """They are not, for this reason."""

    reason: str


PullMessage = PullProgress | Pulled | PullFailed

decoder: msgspec.json.Decoder[PullMessage] = msgspec.json.Decoder(PullMessage)
