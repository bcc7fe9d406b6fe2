"""Reads the images of requests: their content, what they are, how large, and at last their pixels."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from corosrv.errors import InvalidImage, NotOffered
from corosrv.images.data_url import is_data_url, read_base64, read_data_url
from corosrv.images.decoders import DecoderPool
from corosrv.images.decoding import check_dimensions, check_pillow
from corosrv.images.dimensions import read_dimensions
from corosrv.images.fetching import ImageFetcher
from corosrv.images.intake import ImageIntake
from corosrv.images.memory import ImageMemory
from corosrv.images.recognition import ImageFormat, recognise
from corosrv.jobs import Image, ModelCard
from corosrv.settings import ImageSettings
from corosrv.settings.images import PIXEL_BYTES

CAPABILITY = "images"


class ImageReader:
    """Reads the images of all requests of a process, within the limits of its settings."""

    def __init__(self, settings: ImageSettings, decoders: DecoderPool | None = None) -> None:
        """`decoders`: processes that decode; without them it has its own."""
        self.settings = settings
        self.fetcher = ImageFetcher(settings.hosts, settings.image_bytes, settings.image_fetch_s)
        self.memory = ImageMemory(settings.image_memory_bytes)
        self._decoders = decoders or DecoderPool()

    def start(self) -> None:
        """Gets ready to decode, where Pillow is installed. Returns at once."""
        with contextlib.suppress(NotOffered):
            check_pillow()
            self._decoders.start()

    def close(self) -> None:
        """Ends the processes that decode."""
        self._decoders.close()

    def intake(self, card: ModelCard, keeps_files: bool = False) -> ImageIntake | None:
        """Makes what reads the images of one request to this model; None where the model takes none.

        `keeps_files`: images have their files with them, to be stored.
        """
        return RequestImages(self, keeps_files) if CAPABILITY in card.capabilities else None

    def decode(self, data: bytes, image_format: ImageFormat, n_pixels: int, param: str, keeps_file: bool) -> Image:
        """Decodes an image in another process; its memory is counted until nobody has it. Waits for its turn.

        A file that is larger than its pixels is not kept. Raises InvalidImage, TooManyImages, DecoderUnavailable and
        TooBusy.
        """
        n_bytes = PIXEL_BYTES * n_pixels
        file = data if keeps_file and len(data) < n_bytes else b""
        lease = self.memory.lend(n_bytes + len(file))
        try:
            return replace(self._decoders.decode(data, image_format, n_pixels, param), file=file, lease=lease)
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

    def from_url(self, url: str, param: str) -> Image:
        """Reads an image from a data URL, or fetches it. Waits; raises as `from_base64` and ImageFetcher.fetch do."""
        self._count(param)
        if is_data_url(url):
            return self._image(read_data_url(url, param, self._settings.image_bytes), param)
        return self._image(self._reader.fetcher.fetch(url, param), param)

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

    def _image(self, data: bytes, param: str) -> Image:
        image_format = recognise(data, param)
        width, height = read_dimensions(data, image_format, param)
        check_dimensions(width, height, self._settings.image_pixels, param)
        self._count_pixels(width * height, param)
        check_pillow()
        with self._reader.memory.lend(len(data)):
            return self._reader.decode(data, image_format, width * height, param, self._keeps_files)

    def _count_pixels(self, n_pixels: int, param: str) -> None:
        self._n_pixels += n_pixels
        most = self._settings.image_total_pixels
        if self._n_pixels > most:
            raise InvalidImage(f"{param}: the images of the request have more than {most} pixels together", param)
