"""Reads the images of requests: their content, what they are, how large, and at last their pixels.

Content is base64, a data URL or a fetched file. Base64 may break its lines, and is read strictly otherwise. The bytes
of all images together are limited (`ImageMemory`). The images decoded last are kept, since a chat sends all of its
images each time.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from corosrv.base.errors import InvalidImage, NotOffered, TooManyImages
from corosrv.base.processor import Turns
from corosrv.base.recent import RecentValues
from corosrv.base.waits import ThreadLock, call_in_thread
from corosrv.contracts.jobs import Image
from corosrv.contracts.settings import ImageSettings
from corosrv.contracts.settings.server import PIXEL_BYTES
from corosrv.formats.bodies import decode_base64
from corosrv.images.decoders import DecoderPool
from corosrv.images.decoding import ImageFormat, check_dimensions, check_pillow, read_dimensions, recognise
from corosrv.images.fetching import ImageFetcher
from corosrv.images.intake import ImageDetail, ImageIntake

_SCHEME = "data:"
_MOST_HEAD = 256  # characters in front of the comma


def read_data_url(url: str, param: str, max_bytes: int) -> bytes:
    """Returns the content of `data:image/...;base64,...`. Gives way to others while it decodes. Raises InvalidImage."""
    head, comma, text = url[len(_SCHEME) :].partition(",")
    media_type, *options = head[:_MOST_HEAD].lower().split(";")
    if not comma or options[-1:] != ["base64"]:
        raise InvalidImage(f"{param}: a data URL begins with data:image/TYPE;base64,", param)
    if not media_type.startswith("image/"):
        raise InvalidImage(f"{param}: a data URL of an image has a type as image/png, not {media_type[:40]!r}", param)
    return read_base64(text, param, max_bytes)


def read_base64(text: str, param: str, max_bytes: int) -> bytes:
    """Returns what base64 stands for, `max_bytes` at most. Gives way to others. Raises InvalidImage.

    Line breaks are skipped: `base64` and `encodebytes` of Python put some there.
    """
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    if not text:
        raise InvalidImage(f"{param}: the image is empty", param)
    n_bytes = len(text) * 3 // 4 - text[-2:].count("=")
    if n_bytes > max_bytes:
        raise InvalidImage(f"{param}: the image has {n_bytes} bytes, and {max_bytes} are allowed", param)
    try:
        return decode_base64(text, Turns().give_way)
    except ValueError:
        words = "A-Z, a-z, 0-9, + and /, padded with =, without spaces"
        raise InvalidImage(f"{param}: the image is not base64: {words}", param) from None


class ImageMemory:
    """Counts the bytes of all images. Belongs to one process, whose threads may all use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = ThreadLock()
        self._n_bytes = 0
        # Leases may end while garbage is collected, where no lock can be waited for.
        self._returned: deque[int] = deque()

    @property
    def n_bytes(self) -> int:
        with self._lock:
            return self._settled()

    def lend(self, n_bytes: int) -> MemoryLease:
        """Raises TooManyImages where that were more than the limit."""
        with self._lock:
            if self._settled() + n_bytes > self._limit:
                raise TooManyImages(self._limit)
            self._n_bytes += n_bytes
        return MemoryLease(self._returned, n_bytes)

    def _settled(self) -> int:
        while self._returned:
            self._n_bytes -= self._returned.popleft()
        return self._n_bytes


class MemoryLease:
    """Holds bytes of the memory until it is closed, or until nobody has it any more: each image has its own."""

    __slots__ = ("_n_bytes", "_returned")

    def __init__(self, returned: deque[int], n_bytes: int) -> None:
        self._returned = returned
        self._n_bytes = n_bytes

    def __enter__(self) -> MemoryLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the bytes back. Twice is harmless."""
        n_bytes, self._n_bytes = self._n_bytes, 0
        if n_bytes:
            self._returned.append(n_bytes)

    __del__ = close


FileKey = tuple[str, bytes]  # the caller, for whom alone it is kept: others would learn from the time that it was sent


def file_key(caller: str, data: bytes, max_side: int = 0) -> FileKey:
    """Hashes an image's file: half a millisecond for a megabyte. `max_side`: to which its pixels are made smaller."""
    return caller, hashlib.sha256(data).digest() + max_side.to_bytes(4, "little")


CAPABILITY = "images"
LOW_SIDE = 512  # pixels of the longer side of an image of low detail, as OpenAI has it
_RECENT_SHARE = 8  # part of the memory of images that those decoded last may take
_LARGE = 1 << 18  # bytes of a file that is hashed in a thread


class ImageReader:
    """Reads the images of all requests of a process, within the limits of its settings."""

    def __init__(
        self,
        settings: ImageSettings,
        decoders: DecoderPool | None = None,
        find_caller: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`decoders`: processes that decode; without them it has its own.

        `find_caller` names the caller of the request at hand, for whom alone decoded images are kept; None where that
        is not known.
        """
        self.settings = settings
        self.fetcher = ImageFetcher(settings.hosts, settings.image_bytes, settings.image_fetch_s)
        self.memory = ImageMemory(settings.image_memory_bytes)
        self._lock = ThreadLock()  # of those decoded last
        self._recent: RecentValues[FileKey, Image] = RecentValues(
            most_bytes=settings.image_memory_bytes // _RECENT_SHARE, size_of=lambda image: len(image.pixels)
        )
        self._decoders = decoders or DecoderPool()
        self._find_caller = find_caller

    def start(self) -> None:
        """Gets ready to decode, where Pillow is installed. Returns at once."""
        with contextlib.suppress(NotOffered):
            check_pillow()
            self._decoders.start()

    def close(self) -> None:
        """Ends the processes that decode."""
        self._decoders.close()

    def intake(self, keeps_files: bool = False) -> ImageIntake:
        """Makes the reader of one request's images.

        `keeps_files`: images have their files with them, to be stored.
        """
        return RequestImages(self, keeps_files)

    def lend(self, n_bytes: int) -> MemoryLease:
        """Counts memory of images. Where none is left, images kept for later requests give theirs.

        Raises TooManyImages.
        """
        try:
            return self.memory.lend(n_bytes)
        except TooManyImages:
            with self._lock:
                self._recent.clear()
        return self.memory.lend(n_bytes)

    def decode(
        self, data: bytes, image_format: ImageFormat, n_pixels: int, param: str, keeps_file: bool, max_side: int = 0
    ) -> Image:
        """Decodes an image, unless its file was decoded lately. Waits. Its memory is counted until nobody has it.

        `max_side`: pixels of the longer side, to which a larger image is made smaller; 0: it stays as it is.

        A file that is larger than its pixels is not kept. Raises InvalidImage, TooManyImages, DecoderUnavailable and
        TooBusy.
        """
        caller = self._find_caller()
        if caller is None:
            image = self._decode(data, image_format, n_pixels, param, max_side)
        else:
            image = self._decode_once(caller, data, image_format, n_pixels, param, max_side)
        if not keeps_file or len(data) >= PIXEL_BYTES * n_pixels:
            return image
        return replace(image, file=data, lease=(image.lease, self.lend(len(data))))

    def _decode_once(
        self, caller: str, data: bytes, image_format: ImageFormat, n_pixels: int, param: str, max_side: int
    ) -> Image:
        """Decodes an image, unless the caller has sent its file before and its pixels are still here."""
        arguments = caller, data, max_side
        key = call_in_thread(file_key, *arguments) if len(data) > _LARGE else file_key(*arguments)
        with self._lock:
            image = self._recent.get(key)
        if image is None:
            image = self._decode(data, image_format, n_pixels, param, max_side)
            with self._lock:
                self._recent.put(key, image)
        return image

    def _decode(self, data: bytes, image_format: ImageFormat, n_pixels: int, param: str, max_side: int) -> Image:
        """Decodes an image in another process. Waits for its turn."""
        lease = self.lend(PIXEL_BYTES * n_pixels)
        try:
            return replace(self._decoders.decode(data, image_format, n_pixels, param, max_side), lease=lease)
        except BaseException:
            lease.close()
            raise


class RequestImages(ImageIntake):
    """Reads the images of one request and counts them and their pixels."""

    def __init__(self, reader: ImageReader, keeps_files: bool) -> None:
        self._reader = reader
        self._keeps_files = keeps_files
        self._settings = reader.settings
        self._n_images = 0
        self._n_pixels = 0

    def expect(self, n_images: int, param: str) -> None:
        """Raises InvalidImage if a request must not have that many, before the first of them is read."""
        most = self._settings.image_count
        if self._n_images + n_images > most:
            raise InvalidImage(f"{param}: {self._n_images + n_images} images, and a request has {most} at most", param)

    def from_url(self, url: str, param: str, detail: ImageDetail = ImageDetail.AUTO) -> Image:
        """Reads an image from a data URL, or fetches it. Waits; raises as `from_base64` and ImageFetcher.fetch do."""
        self._count(param)
        if url[: len(_SCHEME)].lower() == _SCHEME:
            return self._image(read_data_url(url, param, self._settings.image_bytes), param, detail)
        return self._image(self._reader.fetcher.fetch(url, param), param, detail)

    def from_base64(self, text: str, param: str) -> Image:
        """Reads an image. Waits while it is decoded.

        Raises InvalidImage, NotOffered where Pillow is missing, and what ImageReader.decode does.
        """
        self._count(param)
        return self._image(read_base64(text, param, self._settings.image_bytes), param)

    def from_file(self, data: bytes, param: str) -> Image:
        """Reads the image of a stored file. Waits and raises as `from_base64` does."""
        return self._image(data, param)

    def _count(self, param: str) -> None:
        self._n_images += 1
        self.expect(0, param)

    def _image(self, data: bytes, param: str, detail: ImageDetail = ImageDetail.AUTO) -> Image:
        image_format = recognise(data, param)
        width, height = read_dimensions(data, image_format, param)
        check_dimensions(width, height, self._settings.image_pixels, param)
        self._count_pixels(width * height, param)
        check_pillow()
        with self._reader.lend(len(data)):
            max_side = LOW_SIDE if detail is ImageDetail.LOW else 0
            return self._reader.decode(data, image_format, width * height, param, self._keeps_files, max_side)

    def _count_pixels(self, n_pixels: int, param: str) -> None:
        self._n_pixels += n_pixels
        most = self._settings.image_total_pixels
        if self._n_pixels > most:
            raise InvalidImage(f"{param}: the images of the request have more than {most} pixels together", param)
