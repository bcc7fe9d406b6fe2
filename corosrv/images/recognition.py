"""Tells by their first bytes which files are images that are read here, and names the others."""

from __future__ import annotations

import re
from enum import Enum

from corosrv.base.errors import InvalidImage


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
