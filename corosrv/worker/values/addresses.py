"""Addresses of input files: which are taken, and what their files are called."""

from __future__ import annotations

import base64
import mimetypes
import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from corosrv.outgoing.urls import is_http_url
from corosrv.worker.values.file_names import file_name

_SPACE = re.compile(r"[ \t\r\n\f]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def is_data(address: str) -> bool:
    return address[:5].lower() == "data:" and "," in address


def is_address(address: str) -> bool:
    """Whether it is one that inputs are fetched from. Paths and file: URLs are not: they are the server's own files."""
    return is_data(address) or is_http_url(address)


def web_name(url: str) -> str:
    """The last part of the URL's path."""
    return file_name(unquote(urlsplit(url).path.rpartition("/")[2]))


@dataclass(frozen=True, slots=True)
class DataUrl:
    """A decoded data URL."""

    mime_type: str
    content: bytes

    @property
    def name(self) -> str:
        return "file" + (mimetypes.guess_extension(self.mime_type) or "")

    @classmethod
    def parse(cls, url: str) -> DataUrl:
        """Raises ValueError for base64 that is none. White space and missing padding are no fault, as in browsers."""
        head, _, data = url[5:].partition(",")
        mime_type, *parameters = (part.strip().lower() for part in head.split(";"))
        mime_type = mime_type if "/" in mime_type else "text/plain"
        if not parameters or parameters[-1] != "base64":
            return cls(mime_type, unquote_to_bytes(data))
        return cls(mime_type, _decoded(unquote(data) if "%" in data else data))


def _decoded(text: str) -> bytes:
    text = _SPACE.sub("", text)
    if _BASE64.fullmatch(text) is None or len(text.rstrip("=")) % 4 == 1:
        raise ValueError("broken base64")
    if "=" in text and len(text) % 4:
        raise ValueError("broken base64: wrong padding")
    return base64.b64decode(text + "=" * (-len(text) % 4))
