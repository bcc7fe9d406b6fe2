"""Reads the images of requests: their content, what they are, how large, and at last their pixels."""

from __future__ import annotations

from gevent.lock import BoundedSemaphore

from corosrv.errors import InvalidImage, TooBusy
from corosrv.images.data_url import is_data_url, read_base64, read_data_url
from corosrv.images.decoding import check_dimensions, decode, load_pillow
from corosrv.images.dimensions import read_dimensions
from corosrv.images.fetching import ImageFetcher
from corosrv.images.intake import ImageIntake
from corosrv.images.recognition import recognise
from corosrv.jobs import Image, ModelCard
from corosrv.settings import ImageSettings
from corosrv.waits.elsewhere import call_in_thread

CAPABILITY = "images"
# Images decoded at once, each of which takes up to 9 bytes for a pixel meanwhile; others wait.
_AT_ONCE = 2
_WAIT = 30.0  # seconds


class ImageReader:
    """Reads the images of all requests of a process, within the limits of its settings."""

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._fetcher = ImageFetcher(settings.hosts, settings.image_bytes, settings.image_fetch_s)
        self._permits = BoundedSemaphore(_AT_ONCE)

    def intake(self, card: ModelCard) -> ImageIntake | None:
        """Makes what reads the images of one request to this model; None where the model takes none."""
        if CAPABILITY not in card.capabilities:
            return None
        return RequestImages(self._settings, self._fetcher, self._permits)


class RequestImages(ImageIntake):
    """Reads the images of one request and counts them and their pixels."""

    def __init__(self, settings: ImageSettings, fetcher: ImageFetcher, permits: BoundedSemaphore) -> None:
        self._settings = settings
        self._fetcher = fetcher
        self._permits = permits
        self._n_images = 0
        self._n_pixels = 0

    def from_url(self, url: str, param: str) -> Image:
        """Reads an image from a data URL, or fetches it. Waits; raises as `from_base64` and ImageFetcher.fetch do."""
        self._count(param)
        if is_data_url(url):
            return self._image(read_data_url(url, param, self._settings.image_bytes), param)
        return self._image(self._fetcher.fetch(url, param), param)

    def from_base64(self, text: str, param: str) -> Image:
        """Reads an image. Waits while it is decoded.

        Raises InvalidImage, NotOffered where Pillow is missing, and TooBusy.
        """
        self._count(param)
        return self._image(read_base64(text, param, self._settings.image_bytes), param)

    def _count(self, param: str) -> None:
        self._n_images += 1
        if self._n_images > self._settings.image_count:
            raise InvalidImage(f"{param}: a request has {self._settings.image_count} images at most", param)

    def _image(self, data: bytes, param: str) -> Image:
        settings = self._settings
        image_format = recognise(data, param)
        width, height = read_dimensions(data, image_format, param)
        check_dimensions(width, height, settings.image_pixels, param)
        self._n_pixels += width * height
        self._check_total(param)
        load_pillow()
        if not self._permits.acquire(timeout=_WAIT):
            raise TooBusy("too many images are being decoded: try again")
        try:
            image = call_in_thread(decode, data, image_format, settings.image_pixels, param)
        finally:
            self._permits.release()
        # A frame of a GIF may be larger than its header says.
        self._n_pixels += image.width * image.height - width * height
        self._check_total(param)
        return image

    def _check_total(self, param: str) -> None:
        most = self._settings.image_total_pixels
        if self._n_pixels > most:
            raise InvalidImage(f"{param}: the images of the request have more than {most} pixels together", param)
