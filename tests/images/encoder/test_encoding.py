"""What an encoder makes of an item."""

import pytest

from corosrv.images.encoder.encoding import Encoding
from corosrv.images.transfer.messages import RowSegment, TokenSegment

SEGMENTS = (TokenSegment((7, 8)), RowSegment(2), TokenSegment((9,)), RowSegment(1))
ROWS = memoryview(bytes(range(24)))


def test_the_rows_of_all_segments_count_and_no_tokens():
    encoding = Encoding(SEGMENTS, ROWS, 2)

    assert (encoding.total, encoding.row_bytes) == (3, 8)


@pytest.mark.parametrize("n_bytes", [23, 16, 0])
def test_bytes_that_are_not_the_rows_announced_are_refused(n_bytes: int):
    with pytest.raises(ValueError, match=f"{n_bytes} bytes are not 3 rows of 2 numbers"):
        Encoding(SEGMENTS, ROWS[:n_bytes], 2)


def test_a_slice_has_the_rows_from_its_offset_on():
    assert bytes(Encoding(SEGMENTS, ROWS, 2).slice(1, 2)) == bytes(range(8, 24))
