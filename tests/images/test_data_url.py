"""Base64 and data URLs: what is read, and what is refused."""

import gevent
import pytest

from corosrv.base.errors import InvalidImage
from corosrv.images.reader import read_base64, read_data_url
from tests.images.pictures import base64, data_url

DATA = bytes(range(256)) * 3


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 255, 3 << 17, (3 << 17) + 1, (3 << 17) - 1, 1_000_000])
def test_base64_of_any_length_is_read(n_bytes: int):
    data = (DATA * (n_bytes // len(DATA) + 1))[:n_bytes]

    assert read_base64(base64(data), "image", n_bytes) == data


@pytest.mark.parametrize(
    "head", ["data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,", "data:image/png;charset=x;base64,"]
)
def test_a_data_url_is_read(head: str):
    assert read_data_url(head + base64(DATA), "image", len(DATA)) == DATA


MANY = "ABCD" * 80_000  # more than one piece
PIECE = "ABCD" * (1 << 16)
NOT_BASE64 = (
    "A", "AB", "ABC", "ABCDE", "AB=C", "A===", "====", "=ABC", "ABCD ", "AB CD", "AB_-", "ABC\u00e9", "\uff11ABC",
    "QQ==QQ==", MANY + "A=BC", "A=BC" + MANY, "QQ==" + MANY, PIECE[:-4] + "QQ==" + "ABCD",
)  # fmt: skip
OTHER_URLS = (
    "data:", "data:,", "data:image/png", "data:image/png,abcd", "data:image/png;base64",
    "data:image/png;base64;x,abcd", "data:text/plain;base64,abcd", "data:;base64,abcd",
    "data:application/pdf;base64,abcd", "data:" + "image/png;" * 1000 + "base64,abcd",
)  # fmt: skip


def test_a_long_image_is_read_in_turns():
    text, turns = base64(bytes(30 << 20)), []

    def take_turns() -> None:
        while len(turns) < 3:
            turns.append(reading.ready())
            gevent.sleep(0)

    reading = gevent.spawn(read_base64, text, "image", 30 << 20)
    gevent.spawn(take_turns)

    assert len(reading.get(timeout=30)) == 30 << 20
    assert turns[:3] == [False] * 3


@pytest.mark.parametrize("text", NOT_BASE64)
def test_what_is_not_base64_is_refused(text: str):
    with pytest.raises(InvalidImage, match=r"messages\[0\]: the image is not base64") as refused:
        read_base64(text, "messages[0]", 1 << 20)

    assert refused.value.param == "messages[0]"


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("n_bytes", [255, 300_000])
def test_line_breaks_are_skipped(n_bytes: int, line_break: str):
    data = (DATA * (n_bytes // len(DATA) + 1))[:n_bytes]
    text = base64(data)
    lines = line_break.join(text[start : start + 76] for start in range(0, len(text), 76)) + line_break

    assert read_base64(lines, "image", n_bytes) == data
    assert read_data_url("data:image/png;base64," + lines, "image", n_bytes) == data


@pytest.mark.parametrize("url", OTHER_URLS)
def test_a_data_url_of_something_else_is_refused(url: str):
    with pytest.raises(InvalidImage, match="image: a data URL") as refused:
        read_data_url(url, "image", 1000)

    assert len(str(refused.value)) < 200


def test_an_empty_image_is_refused():
    with pytest.raises(InvalidImage, match="is empty"):
        read_data_url(data_url(b""), "image", 1000)


@pytest.mark.parametrize("n_bytes", [1000, 1001, 1002])
def test_the_limit_is_of_bytes_and_exact(n_bytes: int):
    text = base64(bytes(n_bytes))

    assert len(read_base64(text, "image", n_bytes)) == n_bytes
    with pytest.raises(InvalidImage, match=f"has {n_bytes} bytes, and {n_bytes - 1} are allowed"):
        read_base64(text, "image", n_bytes - 1)
