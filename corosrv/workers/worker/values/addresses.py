"""Addresses of input files: which ones are accepted, how their files are named, and the directories that they go to.

A file name that somebody else chose is made safe: one part of a path, of a bounded length, that hides nothing. Only
this user can read the directories.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from corosrv.base.outgoing import is_http_url

MAX_NAME = 200  # bytes; file systems take 255, and a number may be added
_MAX_ENDING = 20


def file_name(original: str) -> str:
    """Makes a name safe: never empty, `.` or `..`, without `/` or control characters, and not too long."""
    name = "".join("_" if char == "/" or unicodedata.category(char) in ("Cc", "Cs") else char for char in original)
    if not name.strip(". "):
        return "file"
    stem, ending = os.path.splitext(name)
    if len(ending.encode()) > _MAX_ENDING:
        stem, ending = name, ""
    room = MAX_NAME - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore") + ending


def make_private(path: str) -> None:
    """Makes a directory and its missing parents. Leaves an existing one as it is. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private(os.path.dirname(path))
        make_private(path)


_SPACE = re.compile(r"[ \t\r\n\f]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def is_data(address: str) -> bool:
    return address[:5].lower() == "data:" and "," in address


def is_address(address: str) -> bool:
    """Returns whether inputs are fetched from such an address. Paths and file: URLs name the server's own files: no."""
    return is_data(address) or is_http_url(address)


def web_name(url: str) -> str:
    """Makes a file name of the last part of the URL's path."""
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
        """Decodes a data URL. Ignores spaces and missing padding, as browsers do. Raises ValueError for bad base64."""
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
