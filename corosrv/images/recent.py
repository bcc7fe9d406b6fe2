"""Keeps the images that were decoded last, for requests that have the same files again: a chat sends all of them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from corosrv.base.waits import ThreadLock
from corosrv.contracts.jobs import Image

FileKey = tuple[str, bytes]  # the caller, for whom alone it is kept: others would learn from the time that it was sent


def file_key(caller: str, data: bytes, max_side: int = 0) -> FileKey:
    """Hashes an image's file: half a millisecond for a megabyte. `max_side`: to which its pixels are made smaller."""
    return caller, hashlib.sha256(data).digest() + max_side.to_bytes(4, "little")


class RecentImages:
    """Keeps decoded images whose pixels have `max_bytes` together. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = ThreadLock()
        self._images: OrderedDict[FileKey, Image] = OrderedDict()
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """The bytes of all pixels."""
        return self._n_bytes

    def find(self, key: FileKey) -> Image | None:
        """Returns the image of a file that was decoded, which is then the last to be forgotten."""
        with self._lock:
            image = self._images.get(key)
            if image is not None:
                self._images.move_to_end(key)
            return image

    def keep(self, key: FileKey, image: Image) -> None:
        """Keeps an image, unless it is larger than all the room. Those that were used least recently make room."""
        with self._lock:
            if len(image.pixels) > self._max_bytes or key in self._images:
                return
            self._images[key] = image
            self._n_bytes += len(image.pixels)
            while self._n_bytes > self._max_bytes:
                _, oldest = self._images.popitem(last=False)
                self._n_bytes -= len(oldest.pixels)

    def clear(self) -> None:
        """Forgets all images: requests need the memory."""
        with self._lock:
            self._images.clear()
            self._n_bytes = 0
