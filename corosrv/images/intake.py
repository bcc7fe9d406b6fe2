"""The contract by which dialects have the images of a request read, and what the API document says of them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Image
from corosrv.contracts.settings import ImageSettings

MEDIA_MARKER = "<__media__>"  # what stands in a text for an image, as libmtmd has it
PROMPTS = f"a prompt `{{prompt_string, multimodal_data}}`, as base64, one for each `{MEDIA_MARKER}` of its text"


def images_in(parts: str) -> str:
    """Returns the sentences on images of an operation's description. `parts`: what carries one in its body."""
    return (
        f"Models that take images read them in {parts}: PNG, JPEG, WebP, and the first frame of a GIF. A URL is a data "
        "URL, or leads to a host that the operator has listed. Unless the operator has chosen other limits, a request "
        f"has up to {ImageSettings.image_count} images, each of up to {ImageSettings.image_bytes >> 20} MiB and "
        f"{ImageSettings.image_pixels / 1e6:.0f} megapixels, and {ImageSettings.image_total_pixels / 1e6:.0f} "
        "megapixels together. The answer is 503 with `Retry-After` while all requests' images take too much memory."
    )


class ImageDetail(Enum):
    """The resolution in which an image is read, as `detail` of OpenAI's APIs has it."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"
    ORIGINAL = "original"


def read_detail(value: object, param: str) -> ImageDetail:
    """Returns the detail that a client names; none is AUTO. Raises Refused."""
    if value is None:
        return ImageDetail.AUTO
    words = [detail.value for detail in ImageDetail]
    if value not in words:
        raise Refused(f"{param} must be one of {', '.join(words)}, not {str(value)[:40]!r}", param)
    return ImageDetail(value)


class ImageIntake(Protocol):
    """Reads the images of one request, and keeps them within the request's limits."""

    def expect(self, n_images: int, param: str) -> None:
        """Raises Refused if the request must not have that many, before the first of them is read."""
        ...

    def from_url(self, url: str, param: str, detail: ImageDetail = ImageDetail.AUTO) -> Image:
        """Reads the image that a URL has or leads to; `param` is where it stood. May wait. Raises Refused."""
        ...

    def from_base64(self, text: str, param: str) -> Image:
        """Reads the image that base64 stands for. May wait. Raises Refused."""
        ...

    def from_file(self, data: bytes, param: str) -> Image:
        """Reads the image of a stored file, which `expect` has counted. May wait. Raises Refused."""
        ...
