"""Settings of images in requests. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import HOSTS, between, of_bytes
from corosrv.contracts.settings.sources import setting, split_words

# Pillow warns of larger ones by itself.
_MOST_PIXELS = 89_000_000
PIXEL_BYTES = 3


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Settings of the images that requests may have, for models that take some."""

    image_count: int = setting(100, "images of one request", check=between(1, 10_000))
    image_bytes: int = setting(20_971_520, "bytes of one image, as it is sent or fetched", check=of_bytes(1))
    image_pixels: int = setting(25_165_824, "pixels of one image; 3 bytes each", check=between(1, _MOST_PIXELS))
    image_total_pixels: int = setting(
        67_108_864, "pixels of all images of one request together", check=between(1, 2**31)
    )
    image_memory_bytes: int = setting(
        536_870_912,
        "bytes that the images of all requests may take in memory; more are refused with 503",
        check=of_bytes(1024),
    )
    image_hosts: str = setting(
        "",
        "comma-separated hosts that images are fetched from by their URLs: names, *.example.com for all below, "
        "addresses, networks as 10.0.0.0/8; empty: none are fetched. Addresses that are not public count only if they "
        "are listed themselves; link-local ones never do",
        check=HOSTS,
    )
    image_fetch_s: float = setting(10.0, "seconds in which an image must have been fetched", check=between(0.1, 600))

    def __post_init__(self) -> None:
        sources.check(self)
        # Files that are stored are kept beside their pixels, and are not larger than these.
        most = 2 * PIXEL_BYTES * self.image_total_pixels + self.image_bytes
        if self.image_memory_bytes < most:
            raise SettingsError(
                f"image_memory_bytes must be at least {most}: {2 * PIXEL_BYTES} x image_total_pixels + image_bytes"
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of `image_hosts`, each by itself."""
        return split_words(self.image_hosts)
