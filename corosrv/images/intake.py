"""Declares what dialects ask for the images of a request."""

from __future__ import annotations

from typing import Protocol

from corosrv.jobs import Image


class ImageIntake(Protocol):
    """Reads the images of one request, and keeps them within the request's limits."""

    def expect(self, n_images: int, param: str) -> None:
        """Raises Refused if the request must not have that many, before the first of them is read."""
        ...

    def from_url(self, url: str, param: str) -> Image:
        """Reads the image that a URL has or leads to; `param` is where it stood. May wait. Raises Refused."""
        ...

    def from_base64(self, text: str, param: str) -> Image:
        """Reads the image that base64 stands for. May wait. Raises Refused."""
        ...

    def from_file(self, data: bytes, param: str) -> Image:
        """Reads the image of a stored file, which `expect` has counted. May wait. Raises Refused."""
        ...
