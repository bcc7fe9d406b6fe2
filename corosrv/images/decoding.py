"""Decodes images to RGB with Pillow, as they are to be seen: turned by their EXIF orientation, and on white paper.

It is called in the process that corosrv.images.decoder runs, and in no server: a file may end the decoder. Which files
are images that are read here is told by their first bytes alone, and their width and height by their header
(`read_dimensions`); the messages between a server and that process are here as well.

Transparent images are put on white, as other servers of vision models do and as pages show them. llama.cpp's decoder
drops the alpha channel instead: a drawing in black ink on nothing becomes all black.
"""

from __future__ import annotations

import functools
import io
import re
import struct
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from corosrv.base.errors import InvalidImage, NotOffered
from corosrv.workers.wire.messages import ProcessMessage

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class _DecoderMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class DecodeImage(_DecoderMessage, frozen=True, tag="decode"):
    """Asks for an image's pixels. Two sealed memory files come with it: the image's file, and room for the pixels.

    The room has 3 bytes for each pixel of the image's header.
    """

    image_format: str  # the value of an ImageFormat
    n_bytes: int  # of the file
    n_pixels: int  # of its header
    param: str  # where the image stood in the request, for the words of a refusal
    max_side: int = 0  # pixels of the longer side, to which a larger image is made smaller; 0: it stays as it is


class ImageDecoded(_DecoderMessage, frozen=True, tag="decoded"):
    """Reports that RGB pixels stand in the room, row by row from the top."""

    width: int
    height: int


class DecodingRefused(_DecoderMessage, frozen=True, tag="refused"):
    """Reports that the image has no pixels that can be read."""

    reason: str


FromDecoder = ImageDecoded | DecodingRefused | ProcessMessage


class ImageFormat(Enum):
    """The formats that are read, as Pillow names their decoders."""

    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WEBP"
    GIF = "GIF"


_READ = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), ImageFormat.PNG),
    (re.compile(rb"\xff\xd8\xff"), ImageFormat.JPEG),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), ImageFormat.WEBP),
    (re.compile(rb"GIF8[79]a"), ImageFormat.GIF),
)
_BEGINNING = 4096  # bytes in which a text must say that it is SVG
# The first that matches counts.
_REFUSED = (
    (re.compile(rb"(\xef\xbb\xbf)?\s*(<svg|<!DOCTYPE svg|<(\?xml|!--).*<svg)", re.DOTALL | re.IGNORECASE), "SVG"),
    (re.compile(rb".{4}ftyp(avif|avis)", re.DOTALL), "AVIF"),
    (re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL), "HEIC"),
    (re.compile(rb".{4}ftyp", re.DOTALL), "a video"),
    (re.compile(rb"\x1a\x45\xdf\xa3|RIFF.{4}AVI |FLV|\0\0\x01[\xb3\xba]", re.DOTALL), "a video"),
    (re.compile(rb"RIFF.{4}WAVE|ID3|OggS|fLaC|\xff[\xfb\xf3\xf2]", re.DOTALL), "a sound"),
    (re.compile(rb"\xff\x0a|\0\0\0\x0cJXL "), "JPEG XL"),
    (re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"), "JPEG 2000"),
    (re.compile(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"), "TIFF"),
    (re.compile(rb"BM.{12}[\x0c\x28\x38\x40\x6c\x7c]\0\0\0", re.DOTALL), "BMP"),
    (re.compile(rb"\0\0[\x01\x02]\0"), "ICO"),
    (re.compile(rb"8BPS"), "a Photoshop file"),
    (re.compile(rb"%PDF-"), "PDF"),
    (re.compile(rb"%!PS|\xc5\xd0\xd3\xc6"), "PostScript"),
    (re.compile(rb"P[1-7]\s"), "a portable anymap"),
    (re.compile(rb"\x1f\x8b|PK\x03\x04|BZh|\xfd7zXZ\0|\x28\xb5\x2f\xfd"), "a compressed file"),
    (re.compile(rb"\s*<(!doctype html|html|head|body)", re.IGNORECASE), "HTML"),
)


def recognise(data: bytes, param: str) -> ImageFormat:
    """Returns the format of an image, whatever its name and type say. Raises InvalidImage for others, by name."""
    if not data:
        raise InvalidImage(f"{param}: the image is empty", param)
    for magic, image_format in _READ:
        if magic.match(data):
            return image_format
    beginning = data[:_BEGINNING]
    kind = next((name for magic, name in _REFUSED if magic.match(beginning)), "a file of an unknown kind")
    raise InvalidImage(f"{param}: {kind} is not read here: send PNG, JPEG, WebP or GIF", param, "unsupported_image")


MAX_SIDE = 1 << 15  # pixels; what the encoder takes, see corosrv.images.encoder.mtmd
_ORIENTATION = 0x0112
# How a picture is turned to stand upright, by its EXIF orientation; members of Pillow's Transpose.
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def check_dimensions(width: int, height: int, max_pixels: int, param: str) -> None:
    """Raises InvalidImage for an image without pixels, and for one with more than `max_pixels`."""
    if width < 1 or height < 1:
        raise InvalidImage(f"{param}: the image has no pixels: it is {width} x {height}", param)
    if width * height > max_pixels:
        words = f"{width} x {height} pixels, and {max_pixels} in all are allowed"
        raise InvalidImage(f"{param}: the image has {words}", param)
    if max(width, height) > MAX_SIDE:
        raise InvalidImage(f"{param}: the image is {width} x {height}, and a side has {MAX_SIDE} at most", param)


@functools.cache  # looking for it takes as long as the rest of an image that was decoded lately
def check_pillow() -> None:
    """Raises NotOffered where Pillow is not installed. Looks for it once, if it is there."""
    if find_spec("PIL") is None:
        raise NotOffered("this server cannot decode images: it needs Pillow (pip install 'corosrv[images]')")


def decode(
    data: bytes, image_format: ImageFormat, n_pixels: int, param: str, max_side: int = 0
) -> tuple[int, int, bytes]:
    """Returns width, height and pixels of an image whose dimensions are checked; of an animation, of the first frame.

    `n_pixels`: of its header. `max_side`: see DecodeImage. Computes for up to a second. Raises InvalidImage for a file
    that is truncated or damaged, or takes too much memory, and for a GIF whose frame has more pixels than its header
    says.
    """
    import PIL.Image

    try:
        # No other decoder of Pillow's looks at the file.
        with PIL.Image.open(io.BytesIO(data), formats=[image_format.value]) as picture:
            if picture.width * picture.height > n_pixels:
                raise InvalidImage(f"{param}: the {image_format.name} has a frame larger than its header says", param)
            picture.load()
            upright = _rgb(_upright(picture))
        if max_side and max(upright.size) > max_side:
            upright.thumbnail((max_side, max_side))
        return *upright.size, upright.tobytes()
    except InvalidImage:
        raise
    except MemoryError:
        raise InvalidImage(f"{param}: the {image_format.name} takes too much memory to be decoded", param) from None
    except Exception:  # Pillow's decoders raise whatever they stumble over
        raise InvalidImage(f"{param}: the {image_format.name} is truncated or damaged", param) from None


def _upright(picture: Picture) -> Picture:
    import PIL.Image

    try:
        method = _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # notes that cannot be read turn nothing
        return picture
    return picture if method is None else picture.transpose(PIL.Image.Transpose[method])


def _rgb(picture: Picture) -> Picture:
    import PIL.Image

    if picture.mode == "I;16":
        # Conversion would cut off all that is brighter than 255; the high byte of two, the second, is the brightness.
        picture = PIL.Image.frombytes("L", picture.size, picture.tobytes()[1::2])
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    paper = PIL.Image.new("RGB", picture.size, "white")
    paper.paste(picture, mask=picture.getchannel("A"))
    return paper


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
