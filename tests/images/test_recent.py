"""Images that were decoded lately: for whom they are kept, how many, and when they give their memory up."""

from typing import Any

import pytest

from corosrv.base.errors import TooManyImages
from corosrv.contracts.jobs import Image
from corosrv.contracts.settings import ImageSettings
from corosrv.images.decoders import DecoderPool
from corosrv.images.reader import ImageReader, file_key
from tests.images.decoders import DECODERS
from tests.images.pictures import data_url, plain

LIMITS: dict[str, Any] = {"image_total_pixels": 1000, "image_bytes": 1000, "image_memory_bytes": 24_000}
FILE = plain("PNG", (30, 30))  # 2700 bytes of pixels, where 3000 are kept


class CallersReader(ImageReader):
    """Reads images for a caller that the test chooses."""

    def __init__(self, caller: str | None = "one", **settings: Any) -> None:
        self.caller = caller
        super().__init__(ImageSettings(**LIMITS | settings), DECODERS, lambda: self.caller)

    def read(self, data: bytes = FILE, keeps_files: bool = False) -> Image:
        intake = self.intake(keeps_files)
        assert intake is not None
        return intake.from_url(data_url(data), "image")


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that were decoded."""
    files: list[bytes] = []
    decode = DecoderPool.decode

    def counting(pool: DecoderPool, data: bytes, *arguments: Any) -> Image:
        files.append(data)
        return decode(pool, data, *arguments)

    monkeypatch.setattr(DecoderPool, "decode", counting)
    return files


def test_an_image_of_low_detail_is_another_image():
    assert file_key("caller", b"file", 512) != file_key("caller", b"file")


def test_a_file_that_a_caller_sends_again_is_not_decoded_again(decodings):
    reader = CallersReader()

    assert reader.read() == reader.read()
    assert decodings == [FILE]


def test_another_callers_file_is_decoded_again(decodings):
    reader = CallersReader()
    reader.read()

    reader.caller = "two"
    reader.read()

    assert decodings == [FILE, FILE]


def test_nothing_is_kept_for_a_caller_who_is_not_known(decodings):
    reader = CallersReader(caller=None)

    reader.read(), reader.read()

    assert decodings == [FILE, FILE]
    assert reader.memory.n_bytes == 0


def test_a_file_that_is_stored_is_not_decoded_again_and_is_there(decodings):
    reader = CallersReader()
    reader.read()

    image = reader.read(keeps_files=True)

    assert (image.file, decodings) == (FILE, [FILE])
    assert reader.memory.n_bytes == 2700 + len(FILE)
    del image
    assert reader.memory.n_bytes == 2700


def test_images_that_are_kept_give_way_to_those_of_requests(decodings):
    reader = CallersReader()
    reader.read()
    held = reader.lend(24_000 - 2700 - 1)

    other = reader.lend(2000)

    held.close(), other.close()
    assert reader.memory.n_bytes == 0
    reader.read()
    assert decodings == [FILE, FILE]


def test_requests_are_refused_where_images_that_are_kept_are_not_enough():
    reader = CallersReader()
    reader.read()

    with pytest.raises(TooManyImages):
        reader.lend(24_001)
