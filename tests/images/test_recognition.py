"""Recognition of files by their first bytes."""

import gzip

import pytest
from PIL import Image

from corosrv.base.errors import InvalidImage
from corosrv.images.decoding import ImageFormat, recognise
from tests.images.pictures import FORMATS, encoded, plain

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_is_recognised_by_its_content(kind: str):
    assert recognise(plain(kind), "image") is ImageFormat(kind)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (SVG, "SVG"),
        (b"\xef\xbb\xbf\n  " + SVG, "SVG"),
        (b'<?xml version="1.0"?>\n<!-- drawn -->' + SVG, "SVG"),
        (b"<!-- " + b"x" * 1000 + b"-->" + SVG, "SVG"),
        (b'<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN">' + SVG, "SVG"),
        (gzip.compress(SVG, mtime=0), "a compressed file"),
        (plain("BMP"), "BMP"),
        (plain("TIFF"), "TIFF"),
        (plain("ICO", (16, 16)), "ICO"),
        (plain("PPM"), "a portable anymap"),
        (plain("PDF"), "PDF"),
        (plain("EPS"), "PostScript"),
        (encoded(Image.new("RGB", (8, 8)), "JPEG2000", no_jp2=True), "JPEG 2000"),
        (encoded(Image.new("RGB", (8, 8)), "JPEG2000"), "JPEG 2000"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "AVIF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0", "a video"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "a sound"),
        (b"<!doctype html><html>", "HTML"),
        (b"\0", "a file of an unknown kind"),
        (b"PNG", "a file of an unknown kind"),
        (b"RIFF\x24\0\0\0", "a file of an unknown kind"),
        (b"\x89PNG\r\n", "a file of an unknown kind"),
    ],
)
def test_another_file_is_refused_by_its_name(data: bytes, name: str):
    with pytest.raises(InvalidImage) as refused:
        recognise(data, "image")

    assert str(refused.value) == f"image: {name} is not read here: send PNG, JPEG, WebP or GIF"
    assert refused.value.code == "unsupported_image"


def test_an_empty_file_is_refused():
    with pytest.raises(InvalidImage, match="is empty"):
        recognise(b"", "image")
