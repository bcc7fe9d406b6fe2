"""Makes image files for tests, with Pillow and by hand."""

import io
import struct
import zlib
from base64 import b64encode

from PIL import Image

from corosrv.contracts.jobs import ModelCard

CARD = ModelCard("m", 0, capabilities=frozenset({"completion", "chat", "images"}))
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def encoded(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def plain(kind: str = "PNG", size: tuple[int, int] = (6, 4), colour=RED, **options) -> bytes:
    """Returns a file of an image in one colour."""
    return encoded(Image.new("RGB", size, colour), kind, **options)


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64(data)}"


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, colour_type: int, depth: int, rows: bytes) -> bytes:
    """Writes a PNG whose header may say anything."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header), png_chunk(b"IDAT", zlib.compress(rows, 9)), png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
