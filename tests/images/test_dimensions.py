"""Dimensions from headers, of whole, cut and hostile files."""

import struct

import pytest
from PIL import Image

from corosrv.base.errors import InvalidImage
from corosrv.images.decoding import read_dimensions, recognise
from tests.images.pictures import encoded, plain

SIZES = ((1, 1), (300, 7), (7, 300), (256, 255))
APP = b"\xff\xe1\x00\x04ab"
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"


def dimensions(data: bytes) -> tuple[int, int]:
    return read_dimensions(data, recognise(data, "image"), "image")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"comment": b"\xff\xda" * 30}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": EXIF}),
    ],
)
def test_the_header_says_the_dimensions(kind: str, options: dict, size: tuple[int, int]):
    assert dimensions(plain(kind, size, **options)) == size


@pytest.mark.parametrize(
    ("kind", "options", "n_magic", "n_header"),
    [
        ("PNG", {}, 8, 24),
        ("WEBP", {}, 12, 30),
        ("WEBP", {"lossless": True}, 12, 25),
        ("WEBP", {"exif": EXIF}, 12, 30),
        ("GIF", {}, 6, 10),
    ],
)
def test_a_file_that_ends_in_its_header_is_refused(kind: str, options: dict, n_magic: int, n_header: int):
    data = plain(kind, **options)

    for n_bytes in range(n_magic, n_header):
        with pytest.raises(InvalidImage, match=f"image: the {kind} is truncated"):
            dimensions(data[:n_bytes])
    assert dimensions(data[:n_header]) == (6, 4)


def test_a_jpeg_that_ends_before_its_pixels_is_refused():
    data = plain("JPEG")

    for n_bytes in range(3, data.index(b"\xff\xda") + 1):
        with pytest.raises(InvalidImage, match="image: the JPEG is truncated"):
            dimensions(data[:n_bytes])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (plain("PNG").replace(b"IHDR", b"IEND"), "does not begin with its header"),
        (plain("PNG").replace(b"\x0dIHDR", b"\x0eIHDR"), "does not begin with its header"),
        (plain("WEBP").replace(b"VP8 ", b"ABCD"), "unknown chunk"),
        (plain("WEBP").replace(b"\x9d\x01\x2a", b"\0\0\0"), "no start code"),
        (plain("WEBP", lossless=True).replace(b"\x2f", b"\0", 1), "no signature"),
        (b"\xff\xd8\xff\xe0\x00\x01", "a segment has no length"),
        (b"\xff\xd8" + APP + b"\x00" * 9, "does not begin with a marker"),
        (b"\xff\xd8" + b"\xff" * 65 + plain("JPEG")[3:], "too much in front"),
        (b"\xff\xd8" + APP * 1025 + plain("JPEG")[2:], "more than 1024 segments"),
        (b"\xff\xd8\xff\xda\x00\x02", "pixels come before their size"),
        (plain("JPEG") + b"\xff\xda" * 64, "more than 64 scans"),
    ],
)
def test_a_header_that_lies_is_refused(data: bytes, fault: str):
    with pytest.raises(InvalidImage, match=fault):
        dimensions(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + (b"\xff\xff" + APP) * 900 + plain("JPEG", (5, 3))[2:],
        b"\xff\xd8" + b"\xff" * 64 + plain("JPEG", (5, 3))[3:],
        b"\xff\xd8" + b"\xff\xfe\x00\x02" + plain("JPEG", (5, 3))[2:],
        b"\xff\xd8" + b"\xff\x01\xff\xd0" + plain("JPEG", (5, 3))[2:],
        plain("JPEG", (5, 3)) + b"\xff\xda" * 63,
    ],
    ids=["many segments", "all fill bytes", "a segment without content", "markers that stand alone", "all scans"],
)
def test_a_jpeg_with_as_much_in_front_of_its_pixels_as_may_be_is_read(data: bytes):
    assert dimensions(data) == (5, 3)


def test_a_jpeg_has_the_dimensions_of_its_frame_and_not_of_its_thumbnail():
    thumbnail = plain("JPEG", (3, 2))
    exif = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 8) + b"Exif\0\0" + thumbnail

    assert dimensions(b"\xff\xd8" + exif + plain("JPEG", (64, 48))[2:]) == (64, 48)


def test_a_progressive_jpeg_of_an_encoder_has_few_enough_scans():
    noise = Image.effect_noise((200, 200), 90).convert("RGB")

    assert dimensions(encoded(noise, "JPEG", progressive=True, quality=95)) == (200, 200)
