"""Makes the bytes of a stream's events, and keeps a copy of them where somebody asks for one."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Reader

Item = TypeVar("Item")


class Encoder(Protocol[Item]):
    """Makes events of a reader's items."""

    failure: CorosrvError | None  # why the stream ends before its reader; its event came with the last items

    def encode(self, items: list[Item]) -> bytes: ...

    def encode_error(self, error: CorosrvError) -> bytes:
        """Makes the event of an error that the reader raised."""

    def close(self) -> None:
        """Ends the stream, whether its reader has ended or not."""


class Recording(Protocol):
    """Takes the copy of a stream. Called in the hub, so that nothing here may wait."""

    def add(self, piece: bytes) -> None:
        """Takes what is about to be sent."""

    def finish(self) -> None:
        """Ends a copy that has all of a stream that ended well. Called at most once, before the last piece is sent."""

    def drop(self) -> None:
        """Ends the copy of a stream that is over; called after `finish` as well."""


class RecordedEncoder(Generic[Item]):
    """Hands a copy of what an encoder makes to a recording. Comments, which no encoder makes, are not in it."""

    __slots__ = ("_encoder", "_reader", "_recording")

    def __init__(self, encoder: Encoder[Item], reader: Reader[Item], recording: Recording) -> None:
        self._encoder = encoder
        self._reader = reader
        self._recording = recording

    @property
    def failure(self) -> CorosrvError | None:
        return self._encoder.failure

    @failure.setter
    def failure(self, failure: CorosrvError | None) -> None:
        self._encoder.failure = failure

    def encode(self, items: list[Item]) -> bytes:
        piece = self._encoder.encode(items)
        self._recording.add(piece)
        if self._reader.is_finished and self._encoder.failure is None:
            self._recording.finish()
        return piece

    def encode_error(self, error: CorosrvError) -> bytes:
        return self._encoder.encode_error(error)

    def close(self) -> None:
        self._recording.drop()
        self._encoder.close()
