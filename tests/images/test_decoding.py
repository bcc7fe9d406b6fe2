"""Decoding: the pixels of real files of each kind, and what is done with damaged ones."""

import array
import struct
import sys

import pytest
from PIL import Image

from corosrv.base.errors import InvalidImage, NotOffered
from corosrv.contracts import jobs
from corosrv.images.decoding import MAX_SIDE, ImageFormat, check_dimensions, check_pillow, decode, recognise
from corosrv.images.encoder import mtmd
from tests.images.pictures import BLACK, BLUE, FORMATS, GREEN, RED, WHITE, encoded, plain, png, png_chunk

MOST = 1_000_000
SIZE = (24, 16)


def decoded(data: bytes, max_pixels: int = MOST) -> jobs.Image:
    return jobs.Image.of_pixels(*decode(data, recognise(data, "image"), max_pixels, "image"))


def pixel(image: jobs.Image, x: int, y: int) -> tuple[int, ...]:
    place = 3 * (y * image.width + x)
    return tuple(image.pixels[place : place + 3])


def is_near(colour: tuple[int, ...], other: tuple[int, ...], by: int = 24) -> bool:
    return all(abs(a - b) <= by for a, b in zip(colour, other, strict=True))


def corner(colour=RED) -> Image.Image:
    """Makes a white picture whose left upper quarter is coloured."""
    picture = Image.new("RGB", SIZE, WHITE)
    picture.paste(colour, (0, 0, SIZE[0] // 2, SIZE[1] // 2))
    return picture


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_rgb_from_the_left_and_the_top(kind: str):
    image = decoded(encoded(corner(), kind))

    assert (image.width, image.height) == SIZE
    assert is_near(pixel(image, 2, 2), RED)
    assert is_near(pixel(image, 20, 2), WHITE)
    assert is_near(pixel(image, 2, 14), WHITE)


def test_equal_pixels_are_the_same_image_whatever_the_file():
    png_image, gif_image = decoded(encoded(corner(), "PNG")), decoded(encoded(corner(), "GIF"))

    assert png_image == gif_image
    assert png_image.sha256 != decoded(encoded(corner(GREEN))).sha256


# Where the corner of an upright picture stands in the file, by the orientation that the file notes.
@pytest.mark.parametrize(
    ("orientation", "is_right", "is_low"),
    [(1, 0, 0), (2, 1, 0), (3, 1, 1), (4, 0, 1), (5, 0, 0), (6, 1, 0), (7, 1, 1), (8, 0, 1), (9, 0, 0), (0, 0, 0)],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_turned_as_its_exif_says(kind: str, orientation: int, is_right: int, is_low: int):
    exif = Image.Exif()
    exif[0x0112] = orientation

    image = decoded(encoded(corner(), kind, exif=exif.tobytes()))

    is_on_its_side = 5 <= orientation <= 8
    assert (image.width, image.height) == (SIZE[::-1] if is_on_its_side else SIZE)
    x, y = (image.width - 3 if is_right else 2), (image.height - 3 if is_low else 2)
    assert is_near(pixel(image, x, y), RED)
    assert not is_near(pixel(image, image.width - 1 - x, image.height - 1 - y), RED)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"x"]
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_exif_that_cannot_be_read_turns_nothing(exif: bytes):
    data = plain("JPEG")
    marker = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif

    assert is_near(pixel(decoded(data[:2] + marker + data[2:]), 0, 0), RED)


def test_an_exif_of_a_png_that_is_not_even_hexadecimal_turns_nothing():
    text = b"Raw profile type exif\0\nexif\n      4\nwhatever"
    data = plain("PNG")

    assert decoded(data[:33] + png_chunk(b"tEXt", text) + data[33:]) == decoded(data)


def test_a_cmyk_jpeg_has_its_colours():
    image = decoded(encoded(Image.new("CMYK", SIZE, (0, 255, 255, 0)), "JPEG"))

    assert is_near(pixel(image, 3, 3), RED)


def test_a_grey_jpeg_is_grey():
    assert is_near(pixel(decoded(encoded(Image.new("L", SIZE, 100), "JPEG")), 3, 3), (100, 100, 100))


def test_sixteen_bits_of_grey_keep_their_brightness():
    values = array.array("H", [0, 0x1234, 0x8000, 0xFFFF])
    values.byteswap()

    image = decoded(png(4, 1, 0, 16, b"\0" + values.tobytes()))

    assert [pixel(image, x, 0) for x in range(4)] == [(0,) * 3, (0x12,) * 3, (0x80,) * 3, (255,) * 3]


def test_sixteen_bits_of_each_colour_keep_their_brightness():
    image = decoded(png(1, 1, 2, 16, b"\0" + bytes([0x12, 0x99, 0x80, 0x99, 0xFF, 0x99])))

    assert pixel(image, 0, 0) == (0x12, 0x80, 0xFF)


def test_sixteen_bits_of_grey_and_alpha_stand_on_white():
    image = decoded(png(2, 1, 4, 16, b"\0" + bytes([0x40, 0, 0xFF, 0xFF]) + bytes([0x40, 0, 0, 0])))

    assert [pixel(image, x, 0) for x in range(2)] == [(0x40,) * 3, WHITE]


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_few_bits_of_grey_reach_from_black_to_white(depth: int):
    row = bytes([0b11110000]) if depth < 8 else bytes([255, 0])

    image = decoded(png(8 // depth if depth < 8 else 2, 1, 0, depth, b"\0" + row))

    assert pixel(image, 0, 0) == WHITE
    assert pixel(image, image.width - 1, 0) == BLACK


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_transparent_is_white_and_half_of_it_halfway(kind: str):
    picture = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        picture.putpixel((x, 0), (*BLACK, alpha))

    image = decoded(encoded(picture, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))

    assert [pixel(image, x, 0)[0] for x in range(3)] == [255, 127, 0]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_with_a_transparent_colour_stands_on_white(kind: str):
    picture = Image.new("P", (2, 1))
    picture.putpalette([*BLUE, *BLACK])
    picture.putpixel((1, 0), 1)

    image = decoded(encoded(picture, kind, transparency=1))

    assert [pixel(image, x, 0) for x in range(2)] == [BLUE, WHITE]


def test_one_colour_of_an_rgb_image_may_be_transparent():
    image = decoded(plain("PNG", colour=BLACK, transparency=BLACK))

    assert pixel(image, 0, 0) == WHITE


@pytest.mark.parametrize(("kind", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})])
def test_of_an_animation_the_first_frame_is_read(kind: str, options: dict):
    frames = [Image.new("RGB", SIZE, colour) for colour in (GREEN, RED, BLUE)]

    image = decoded(encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **options))

    assert is_near(pixel(image, 5, 5), GREEN)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
    ],
)
def test_a_truncated_file_is_refused_unless_all_its_pixels_are_there(kind: str, options: dict):
    data = encoded(Image.effect_noise((32, 32), 90).convert("RGB"), kind, **options)
    pixels = decoded(data).pixels
    faults = []
    cuts = range(40, len(data), max(len(data) // 150, 1))

    for n_bytes in cuts:
        try:
            assert decode(data[:n_bytes], ImageFormat(kind), MOST, "image")[2] == pixels
        except InvalidImage as error:
            faults.append(str(error))

    assert set(faults) == {f"image: the {kind} is truncated or damaged"}
    assert len(faults) > 0.9 * len(cuts)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_file_is_refused_or_read_and_never_fails_otherwise(kind: str):
    data = bytearray(encoded(corner(), kind))

    for place in range(len(data)):
        damaged = bytes(data[:place]) + bytes([data[place] ^ 0xFF]) + bytes(data[place + 1 :])
        try:
            width, height, pixels = decode(damaged, ImageFormat(kind), MOST, "image")
        except InvalidImage:
            continue
        assert len(pixels) == 3 * width * height


def test_a_frame_that_is_larger_than_its_header_says_is_refused():
    data = bytearray(plain("GIF", (300, 300)))
    data[6:10] = struct.pack("<HH", 10, 10)

    with pytest.raises(InvalidImage, match="the GIF has a frame larger than its header says"):
        decoded(bytes(data), max_pixels=1000)


def test_a_file_with_another_name_in_it_is_not_given_to_another_decoder():
    with pytest.raises(InvalidImage, match="the PNG is truncated or damaged"):
        decode(plain("TIFF"), ImageFormat.PNG, MOST, "image")


@pytest.mark.parametrize(
    ("width", "height", "fault"),
    [(0, 5, "no pixels: it is 0 x 5"), (5, 0, "no pixels"), (101, 100, "101 x 100 pixels"), (32_769, 0, "no pixels")],
)
def test_dimensions_over_a_limit_are_refused(width: int, height: int, fault: str):
    check_dimensions(100, 100, 10_000, "image")
    with pytest.raises(InvalidImage, match=fault):
        check_dimensions(width, height, 10_000, "image")


def test_a_side_has_its_own_limit():
    check_dimensions(32_768, 1, MOST, "image")
    for side in ((1, 32_769), (32_769, 1)):
        with pytest.raises(InvalidImage, match="a side has 32768 at most"):
            check_dimensions(*side, MOST, "image")


def test_an_encoder_takes_as_long_a_side():
    assert mtmd.MAX_SIDE == MAX_SIDE


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    check_pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(NotOffered, match=r"pip install 'corosrv\[images\]'"):
        check_pillow()
