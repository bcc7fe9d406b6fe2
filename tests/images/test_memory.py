"""The memory of all requests' images: what counts, for how long, and what is refused when it is full."""

import gc
from typing import Any

import gevent
import pytest
from gevent.event import Event

from corosrv.base.errors import InvalidImage, SettingsError, TooManyImages
from corosrv.contracts.settings import ImageSettings
from corosrv.dialects.openai.responses.store import ResponseStore, Stored
from corosrv.images.decoders import DecoderPool
from corosrv.images.reader import ImageMemory, ImageReader
from tests.images.decoders import DECODERS
from tests.images.pictures import data_url, plain
from tests.support.answers import empty_response

LIMITS: dict[str, Any] = {"image_total_pixels": 1000, "image_bytes": 1000, "image_memory_bytes": 7000}
URL = data_url(plain("PNG", (30, 30)))  # 2700 bytes of pixels


@pytest.fixture
def images() -> ImageReader:
    return ImageReader(ImageSettings(**LIMITS), DECODERS)


@pytest.fixture(autouse=True)
def no_collections():
    """Servers put full collections off for long: what is freed by them alone counts as leaked."""
    gc.disable()
    yield
    gc.enable()


def read(images: ImageReader, url: str = URL):
    intake = images.intake()
    assert intake is not None
    return intake.from_url(url, "image")


def test_memory_that_is_lent_is_there_again_when_the_lease_is_closed():
    memory = ImageMemory(10)
    lease = memory.lend(6)

    with pytest.raises(TooManyImages, match="exceed the 10 bytes allowed"):
        memory.lend(5)
    lease.close()
    lease.close()

    assert memory.n_bytes == 0
    with memory.lend(10) as held:
        assert memory.n_bytes == 10
    assert memory.n_bytes == 0
    assert held is not None


def test_memory_whose_lease_nobody_has_is_there_again():
    memory = ImageMemory(10)
    lease = memory.lend(6)

    del lease

    assert memory.n_bytes == 0


def test_an_image_counts_with_its_pixels_until_nobody_has_it(images: ImageReader):
    image = read(images)

    assert images.memory.n_bytes == len(image.pixels) == 2700
    del image
    assert images.memory.n_bytes == 0


def test_the_images_of_all_requests_count_together(images: ImageReader):
    held = [read(images), read(images)]

    with pytest.raises(TooManyImages) as refused:
        read(images)
    held.pop()

    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    assert read(images).width == 30


def test_a_file_that_is_kept_counts_with_its_pixels_until_nobody_has_it(images: ImageReader):
    image = images.intake(keeps_files=True).from_url(URL, "image")

    assert image.file == plain("PNG", (30, 30))
    assert images.memory.n_bytes == len(image.pixels) + len(image.file)
    del image
    assert images.memory.n_bytes == 0


def test_a_file_that_is_larger_than_its_pixels_is_not_kept(images: ImageReader):
    image = images.intake(keeps_files=True).from_url(data_url(plain("PNG", (3, 3))), "image")

    assert (image.width, image.file) == (3, b"")


def test_an_image_of_a_stored_conversation_counts_as_the_shelfs(images: ImageReader):
    shelf, response = ResponseStore(100_000).shelf(""), empty_response("resp_1")
    shelf.put(Stored(response, ({"role": "user", "content": (read(images),)},)))

    assert images.memory.n_bytes == 0
    assert len(shelf.get(response.id).turns[0]["content"][0].content.pixels) == 2700


def test_less_memory_than_one_request_may_need_stops_the_start():
    with pytest.raises(SettingsError, match="image_memory_bytes must be at least 7000"):
        ImageSettings(**LIMITS | {"image_memory_bytes": 6999})


def test_a_file_that_waits_to_be_decoded_counts_with_its_bytes(images: ImageReader, monkeypatch: pytest.MonkeyPatch):
    held, decode = [], DecoderPool.decode

    def counting(*arguments: Any) -> Any:
        held.append(images.memory.n_bytes)
        return decode(*arguments)

    monkeypatch.setattr(DecoderPool, "decode", counting)
    read(images)

    assert held == [2700 + len(plain("PNG", (30, 30)))]


def test_an_image_that_cannot_be_decoded_leaves_no_memory_counted(images: ImageReader):
    with pytest.raises(InvalidImage, match="truncated") as refused:
        read(images, data_url(plain("JPEG", (30, 30))[:-40]))

    assert refused.value.__traceback__ is not None
    assert images.memory.n_bytes == 0


def test_a_request_that_is_killed_while_it_decodes_leaves_no_memory_counted(
    images: ImageReader, monkeypatch: pytest.MonkeyPatch
):
    is_decoding = Event()

    def stuck(*_: Any) -> Any:
        is_decoding.set()
        gevent.sleep(60)

    monkeypatch.setattr(DecoderPool, "decode", stuck)
    reading = gevent.spawn(read, images)
    assert is_decoding.wait(5)
    assert images.memory.n_bytes > 2700

    reading.kill()

    assert images.memory.n_bytes == 0
