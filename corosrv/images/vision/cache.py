"""Keeps encoded images for requests that have them again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from corosrv.contracts.jobs import Rows, Tokens

Key = tuple[str, str]  # the caller, whose images are not used for others, and the SHA-256


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """Holds what stands in a prompt for an image: rows, and tokens around and between them."""

    pieces: tuple[Tokens | Rows, ...]

    @property
    def n_bytes(self) -> int:
        return sum(len(piece.data) + len(piece.positions) for piece in self.pieces if isinstance(piece, Rows))


class ImageCache:
    """Keeps the images used last, as many as `max_bytes` hold."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._images: OrderedDict[Key, EncodedImage] = OrderedDict()
        self.n_bytes = 0
        self.n_hits = 0

    def __len__(self) -> int:
        return len(self._images)

    def get(self, key: Key) -> EncodedImage | None:
        """Returns an image, and counts that it was there."""
        image = self._images.get(key)
        if image is not None:
            self._images.move_to_end(key)
            self.n_hits += 1
        return image

    def put(self, key: Key, image: EncodedImage) -> None:
        """Keeps an image, unless it is larger than all the room. Others make room for it."""
        if image.n_bytes > self._max_bytes:
            return
        self._forget(key)
        self._images[key] = image
        self.n_bytes += image.n_bytes
        while self.n_bytes > self._max_bytes:
            self._forget(next(iter(self._images)))

    def _forget(self, key: Key) -> None:
        image = self._images.pop(key, None)
        if image is not None:
            self.n_bytes -= image.n_bytes
