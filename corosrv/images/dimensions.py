"""Reads the width and height from the header of an image, before any of its pixels is decoded."""

from __future__ import annotations

import struct

from corosrv.base.errors import InvalidImage
from corosrv.images.decoding import ImageFormat

Dimensions = tuple[int, int]  # width, height

_MAX_SEGMENTS = 1024  # of a JPEG before its pixels; profiles and thumbnails take a few hundred at most
# Each scan of a progressive JPEG goes over all of its pixels. Encoders make about ten.
_MAX_SCANS = 64
_MAX_FILL = 64  # bytes of 0xFF in front of a marker
_START_OF_SCAN = 0xDA
# SOF0 to SOF15, without the three in their midst that are something else.
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDS_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))


def read_dimensions(data: bytes, image_format: ImageFormat, param: str) -> Dimensions:
    """Returns width and height in pixels as the header has them. Raises InvalidImage where it is cut off or wrong."""
    try:
        return _READERS[image_format](data)
    except (struct.error, IndexError):
        raise InvalidImage(f"{param}: the {image_format.name} is truncated: it ends in its header", param) from None
    except ValueError as error:
        raise InvalidImage(f"{param}: the {image_format.name} is damaged: {error}", param) from None


def _of_png(data: bytes) -> Dimensions:
    length, name, width, height = struct.unpack_from(">I4sII", data, 8)
    if name != b"IHDR" or length != 13:
        raise ValueError("it does not begin with its header")
    return width, height


def _of_gif(data: bytes) -> Dimensions:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _of_webp(data: bytes) -> Dimensions:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(_slice(data, place, 3), "little") + 1 for place in (24, 27))
        return width, height
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise ValueError("its lossless header has no signature")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        code, width, height = struct.unpack_from("<3sHH", data, 23)
        if code != b"\x9d\x01\x2a":
            raise ValueError("its frame has no start code")
        return width & 0x3FFF, height & 0x3FFF
    if len(kind) < 4:
        raise IndexError
    raise ValueError("it begins with an unknown chunk")


def _of_jpeg(data: bytes) -> Dimensions:
    """Goes over all segments before the pixels. Data that is encoded has no marker in it, so scans can be counted."""
    dimensions, place = None, 2
    for _ in range(_MAX_SEGMENTS):
        place, marker = _next_marker(data, place)
        if marker == _START_OF_SCAN:
            if dimensions is None:
                raise ValueError("its pixels come before their size")
            if data.count(b"\xff\xda") > _MAX_SCANS:
                raise ValueError(f"it has more than {_MAX_SCANS} scans")
            return dimensions
        if marker in _STANDS_ALONE:
            continue
        (length,) = struct.unpack_from(">H", data, place)
        if length < 2:
            raise ValueError("a segment has no length")
        if marker in _START_OF_FRAME:  # should there be several, the last one counts, as it does for Pillow
            height, width = struct.unpack_from(">HH", data, place + 3)
            dimensions = width, height
        place += length
    raise ValueError(f"it has more than {_MAX_SEGMENTS} segments before its pixels")


def _next_marker(data: bytes, place: int) -> tuple[int, int]:
    """Returns the place behind the next marker, and the marker. A marker may have several 0xFF before it."""
    if data[place] != 0xFF:
        raise ValueError("a segment does not begin with a marker")
    for after in range(place + 1, place + 1 + _MAX_FILL):
        if data[after] != 0xFF:
            return after + 1, data[after]
    raise ValueError("a marker has too much in front of it")


def _slice(data: bytes, place: int, length: int) -> bytes:
    if len(data) < place + length:
        raise IndexError
    return data[place : place + length]


_READERS = {
    ImageFormat.PNG: _of_png,
    ImageFormat.JPEG: _of_jpeg,
    ImageFormat.WEBP: _of_webp,
    ImageFormat.GIF: _of_gif,
}
