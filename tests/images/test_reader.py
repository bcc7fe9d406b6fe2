"""Reading the images of a request: limits of each and of all, and what is known before anything is decoded."""

import sys
from typing import Any

import pytest

from corosrv.base.errors import InvalidImage, NotOffered, NotSupported
from corosrv.contracts.settings import ImageSettings
from corosrv.images.decoders import DecoderPool
from corosrv.images.decoding import check_pillow
from corosrv.images.intake import ImageIntake
from corosrv.images.reader import ImageReader
from tests.images.decoders import DECODERS
from tests.images.pictures import RED, base64, data_url, plain, png
from tests.support.children import children
from tests.support.waiting import wait_until


def intake(**settings: Any) -> ImageIntake:
    made = ImageReader(ImageSettings(**settings), DECODERS).intake()
    assert made is not None
    return made


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("an image was decoded")

    monkeypatch.setattr(DecoderPool, "decode", refuse)


def test_an_image_is_read_from_a_data_url_and_from_base64():
    data = plain("PNG", (6, 4))

    image = intake().from_url(data_url(data), "image")

    assert (image.width, image.height, image.pixels) == (6, 4, bytes(RED) * 24)
    assert intake().from_base64(base64(data), "image") == image


def test_the_content_counts_and_not_the_type_that_a_url_claims():
    assert intake().from_url(data_url(plain("GIF"), "image/jpeg"), "image").width == 6


@pytest.mark.usefixtures("no_decoding")
def test_a_hundred_megapixels_in_a_hundred_kilobytes_are_refused_undecoded():
    bomb = png(10_000, 10_000, 0, 1, (b"\0" + bytes(1250)) * 10_000)
    assert len(bomb) < 100_000

    with pytest.raises(InvalidImage, match="10000 x 10000 pixels, and 25165824 in all are allowed") as refused:
        intake().from_url(data_url(bomb), "messages[0].content[1].image_url")

    assert refused.value.param == "messages[0].content[1].image_url"


@pytest.mark.usefixtures("no_decoding")
@pytest.mark.parametrize(("width", "height"), [(0, 4), (4, 0), (0, 0)])
def test_an_image_without_pixels_is_refused_undecoded(width: int, height: int):
    with pytest.raises(InvalidImage, match="has no pixels"):
        intake().from_url(data_url(png(width, height, 2, 8, b"")), "image")


@pytest.mark.usefixtures("no_decoding")
def test_an_image_with_too_many_bytes_is_refused_undecoded():
    data = plain()

    with pytest.raises(InvalidImage, match=f"has {len(data)} bytes, and {len(data) - 1} are allowed"):
        intake(image_bytes=len(data) - 1).from_url(data_url(data), "image")


@pytest.mark.usefixtures("no_decoding")
def test_an_svg_is_refused_by_name():
    with pytest.raises(InvalidImage, match="image: SVG is not read here"):
        intake().from_url(data_url(b"<svg/>", "image/svg+xml"), "image")


def test_the_images_of_a_request_are_counted():
    images, url = intake(image_count=3), data_url(plain())
    for _ in range(3):
        images.from_url(url, "image")

    with pytest.raises(InvalidImage, match="a request has 3 at most"):
        images.from_url(url, "image")


def test_images_in_base64_are_counted_as_well():
    images = intake(image_count=1)
    images.from_base64(base64(plain()), "image")

    with pytest.raises(InvalidImage, match="a request has 1 at most"):
        images.from_base64(base64(plain()), "image")


def test_images_that_are_expected_count_with_those_that_were_read():
    images = intake(image_count=3)
    images.from_url(data_url(plain()), "image")

    images.expect(2, "messages")
    with pytest.raises(InvalidImage, match="messages: 4 images, and a request has 3 at most"):
        images.expect(3, "messages")


def test_the_pixels_of_a_requests_images_count_together():
    images, url = intake(image_total_pixels=50), data_url(plain("PNG", (6, 4)))
    for _ in range(2):
        images.from_url(url, "image")

    with pytest.raises(InvalidImage, match="more than 50 pixels together"):
        images.from_url(url, "image")


def test_each_request_has_limits_of_its_own():
    shared, url = ImageReader(ImageSettings(image_count=1), DECODERS), data_url(plain())

    for _ in range(3):
        assert shared.intake().from_url(url, "image").width == 6


@pytest.mark.parametrize("url", ["https://a.example/x.png", "http://127.0.0.1/x.png", "file:///etc/passwd"])
def test_nothing_is_fetched_unless_hosts_are_allowed(url: str):
    with pytest.raises(NotSupported, match="this server fetches no images: send a data URL"):
        intake().from_url(url, "image")


def test_a_refused_image_gives_its_permit_back():
    shared = ImageReader(ImageSettings(), DECODERS)
    for _ in range(5):
        with pytest.raises(InvalidImage, match="truncated"):
            shared.intake().from_url(data_url(plain("PNG", (40, 40))[:50]), "image")

    assert shared.intake().from_url(data_url(plain()), "image").width == 6


def test_a_reader_with_no_decoders_given_starts_its_own_and_ends_them():
    before = children("corosrv.images.decoder")
    reader = ImageReader(ImageSettings())

    reader.start()
    wait_until(lambda: children("corosrv.images.decoder") != before)  # its command line is there a moment later
    started = children("corosrv.images.decoder") - before
    assert reader.intake().from_url(data_url(plain()), "image").width == 6
    assert children("corosrv.images.decoder") - before == started
    reader.close()

    assert len(started) == 1
    wait_until(lambda: children("corosrv.images.decoder") == before)


def test_without_pillow_a_good_image_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    check_pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(NotOffered, match="needs Pillow"):
        intake().from_url(data_url(png(1, 1, 2, 8, b"\0" + bytes(RED))), "image")
