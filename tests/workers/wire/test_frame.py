import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.base.errors import BadFrame, FrameTooLarge
from corosrv.workers.wire.codec import Frames, framed


@given(st.lists(st.binary(min_size=1, max_size=300)), st.lists(st.integers(1, 40)))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(framed, messages))
    frames = Frames()
    arrived = []

    for size in [*sizes, len(stream)]:
        arrived += frames.feed(stream[:size])
        stream = stream[size:]

    assert arrived == messages
    assert not frames.is_partial


@pytest.mark.parametrize("n_bytes", range(1, 7))
def test_a_frame_that_has_begun_is_partial_until_it_ends(n_bytes: int) -> None:
    frame = framed(b"abc")
    frames = Frames()

    assert frames.feed(frame[:n_bytes]) == []
    assert frames.is_partial
    assert frames.feed(frame[n_bytes:]) == [b"abc"]
    assert not frames.is_partial


def test_a_length_over_the_limit_is_refused_before_anything_of_it_arrives() -> None:
    with pytest.raises(BadFrame, match="of 9 bytes, where 1 to 8"):
        Frames(limit=8).feed(b"\x00\x00\x00\x09")


def test_a_frame_of_the_limit_is_taken() -> None:
    assert Frames(limit=8).feed(framed(b"12345678", limit=8)) == [b"12345678"]


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(BadFrame):
        Frames().feed(bytes(4))


def test_nothing_is_encoded_that_the_other_side_would_refuse() -> None:
    with pytest.raises(FrameTooLarge, match="of 9 bytes"):
        framed(b"123456789", limit=8)
    with pytest.raises(BadFrame):
        framed(b"")
