"""Describes images in requests for the API document."""

from __future__ import annotations

from corosrv.contracts.settings import ImageSettings

PROMPTS = "a prompt `{prompt_string, multimodal_data}`, as base64, one for each `<__media__>` of its text"


def images_in(parts: str) -> str:
    """Returns the sentences on images of an operation's description. `parts`: what carries one in its body."""
    return (
        f"Models that take images read them in {parts}: PNG, JPEG, WebP, and the first frame of a GIF. A URL is a data "
        "URL, or leads to a host that the operator has listed. Unless the operator has chosen other limits, a request "
        f"has up to {ImageSettings.image_count} images, each of up to {ImageSettings.image_bytes >> 20} MiB and "
        f"{ImageSettings.image_pixels / 1e6:.0f} megapixels, and {ImageSettings.image_total_pixels / 1e6:.0f} "
        "megapixels together. The answer is 503 with `Retry-After` while all requests' images take too much memory."
    )
