"""The raw form of BYTES, from those who tell the truth and from those who do not."""

import struct
import time

import gevent
import pytest

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import elements


def element(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(content) if length is None else length) + content


@pytest.mark.parametrize(
    ("raw", "n_elements", "problem"),
    [
        (b"", 1, "too few for the 1 elements"),
        (b"\x00\x00\x00", 1, "too few"),
        (element(b""), 0, "has 4 bytes behind the 0 elements"),
        (element(b"abc", 4), 1, "ends behind its content"),
        (element(b"abc", 2), 1, "has 1 bytes behind"),
        (element(b"", 2**32 - 1), 1, "ends behind its content"),
        (element(b"", 2**32 - 1) + element(b""), 2, "ends before its last element"),
        (element(b"abc") + b"\x01\x00\x00", 2, "too few|ends before"),
        (element(b"a") * 3, 2, "has 5 bytes behind"),
        (element(b"") * 3, 2**62, "too few"),
    ],
)
def test_content_that_lies_is_refused(raw, n_elements, problem):
    for content in (raw, memoryview(raw)):
        with pytest.raises(InvalidTensor, match=f"tensor 'a' .*({problem})"):
            elements.check_bytes("a", n_elements, content)


def test_empty_and_large_elements_are_let_pass():
    raw = element(b"") + element(b"x" * 100_000) + element(b"\xff\x00")

    elements.check_bytes("a", 3, raw)

    assert elements.unpack_bytes(memoryview(raw)) == [b"", b"x" * 100_000, b"\xff\x00"]


@pytest.mark.parametrize(("n_elements", "n_bytes"), [(1, 100), (2, 100), (100, 1), (100, 6), (100, 1000)])
def test_batches_together_are_all_elements(n_elements, n_bytes):
    contents = [b"a", b"", b"bcd", b"e" * 50, b"f"]
    raw = b"".join(map(element, contents))

    batches = list(elements.batches(raw, n_elements, n_bytes))

    assert [content for batch in batches for content in batch] == contents
    assert all(1 <= len(batch) <= n_elements for batch in batches)
    assert all(len(b"".join(map(element, batch[:-1]))) < n_bytes for batch in batches)


@pytest.mark.parametrize("value", [1, 1.5, None, True, ["a"]])
def test_only_strings_and_bytes_are_packed(value):
    with pytest.raises(InvalidTensor, match=f"is a {type(value).__name__} and no string"):
        elements.pack_bytes("a", ["good", value])


def test_strings_are_packed_as_utf_8():
    assert elements.pack_bytes("a", ["é", b"\xff", bytearray(b"b"), memoryview(b"v")]) == b"".join(
        map(element, ("é".encode(), b"\xff", b"b", b"v"))
    )


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidTensor, match="surrogate"):
        elements.pack_bytes("a", ["\ud800"])


def test_others_run_while_many_elements_are_checked():
    content = element(b"") * 2_000_000
    ticks = []

    def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            gevent.sleep(0.001)

    ticking = gevent.spawn(tick)
    gevent.idle()
    elements.check_bytes("a", 2_000_000, content)
    ticking.kill()

    assert len(ticks) > 3
