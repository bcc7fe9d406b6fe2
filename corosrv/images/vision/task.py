"""One image that is being encoded, everybody who waits for it, and what stands for it in a prompt then."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Image, Rows, Tokens
from corosrv.images.transfer.core import TransferOutcome
from corosrv.images.transfer.messages import RowSegment

Key = tuple[str, str]  # the caller, whose images are not used for others, and the SHA-256


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """Holds what stands in a prompt for an image: rows, and tokens around and between them."""

    pieces: tuple[Tokens | Rows, ...]

    @property
    def n_bytes(self) -> int:
        return sum(len(piece.data) + len(piece.positions) for piece in self.pieces if isinstance(piece, Rows))


Wake = Callable[[], None]


class ImageTask:
    """Holds an image, and at last its rows or the reason why there are none. Owned by its encoder."""

    def __init__(self, key: Key, image: Image, ends_at: float) -> None:
        """`ends_at`: of time.monotonic()."""
        self.key = key
        self.image = image
        self.ends_at = ends_at
        self.rid = 0  # of its transfer; 0 while there is none
        self.n_standstills = 0  # of the encoder, while it was at this image
        self.encoded: EncodedImage | None = None
        self.error: CorosrvError | None = None
        self._waiters: list[Wake] = []

    @property
    def is_over(self) -> bool:
        return self.encoded is not None or self.error is not None

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    def join(self, wake: Wake) -> None:
        """Adds a waiter, to be woken at the end."""
        self._waiters.append(wake)

    def leave(self, wake: Wake) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    def end(self, encoded: EncodedImage | None = None, error: CorosrvError | None = None) -> None:
        """Ends the task once; later ends change nothing."""
        if self.is_over:
            return
        self.encoded = encoded
        self.error = error
        for wake in self._waiters:
            wake()

    def value(self) -> EncodedImage:
        """Returns the rows of a task that is over. Raises its error, to each who waits an own one."""
        if self.error is not None:
            raise self.error.fresh()
        assert self.encoded is not None
        return self.encoded


def read_pieces(outcome: TransferOutcome, width: int) -> EncodedImage:
    """Cuts the rows of a transfer into the pieces of a prompt, and hashes them: a millisecond for a megabyte."""
    assert outcome.meta is not None
    assert outcome.rows is not None
    pieces: list[Tokens | Rows] = []
    rows, start = memoryview(outcome.rows), 0
    for segment in outcome.meta.segments:
        if isinstance(segment, RowSegment):
            end = start + 4 * width * segment.n
            pieces.append(_read_rows(segment, bytes(rows[start:end]), width))
            start = end
        elif segment.ids:
            pieces.append(Tokens(segment.ids))
    return EncodedImage(tuple(pieces))


def _read_rows(segment: RowSegment, data: bytes, width: int) -> Rows:
    """Returns rows with what the encoder says of how they are read."""
    if not segment.is_mrope:
        return Rows.of_data(data, width, is_non_causal=segment.is_non_causal)
    positions = struct.pack(f"<{4 * segment.n}i", *chain.from_iterable(segment.positions))
    n_positions = segment.n_positions or segment.n
    return Rows.of_data(data, width, is_non_causal=segment.is_non_causal, n_positions=n_positions, positions=positions)
