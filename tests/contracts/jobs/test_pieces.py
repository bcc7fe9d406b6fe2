"""Prompts in pieces: what rows and images refuse to be, and what makes two of them the same."""

import hashlib

import pytest

from corosrv.contracts.jobs import Image, Pieces, Rows, Tokens

ROW = bytes(8)


@pytest.mark.parametrize(("n", "width", "size"), [(2, 2, 8), (1, 2, 12), (0, 2, 0), (1, 0, 0), (-1, -2, 8)])
def test_rows_are_refused_whose_size_is_not_n_times_width(n: int, width: int, size: int):
    with pytest.raises(ValueError, match="do not have"):
        Rows("0" * 64, bytes(size), n, width)


def test_rows_are_counted_and_hashed_by_their_data():
    rows = Rows.of_data(ROW * 3, width=2)

    assert (rows.n, rows.width, rows.sha256) == (3, 2, hashlib.sha256(ROW * 3).hexdigest())


@pytest.mark.parametrize(("size", "width"), [(0, 2), (7, 2), (12, 2), (8, 0)])
def test_data_that_is_not_whole_rows_is_refused(size: int, width: int):
    with pytest.raises(ValueError, match="do not have"):
        Rows.of_data(bytes(size), width)


def test_rows_are_refused_that_have_not_a_position_each():
    with pytest.raises(ValueError, match="do not have positions of 32 bytes"):
        Rows.of_data(ROW * 3, width=2, n_positions=3, positions=bytes(32))


def test_a_row_counts_as_a_token_does():
    pieces = Pieces((Tokens((1, 2, 3)), Rows.of_data(ROW * 5, width=2), Tokens(())))

    assert pieces.n_tokens == 8


@pytest.mark.parametrize(("width", "height", "size"), [(2, 2, 11), (0, 2, 0), (-1, -1, 3)])
def test_an_image_is_refused_whose_pixels_are_not_width_times_height(width: int, height: int, size: int):
    with pytest.raises(ValueError, match="does not have"):
        Image("0" * 64, width, height, bytes(size))


def test_images_of_the_same_pixels_in_another_shape_have_another_hash():
    wide, high = Image.of_pixels(4, 2, bytes(24)), Image.of_pixels(2, 4, bytes(24))

    assert wide.sha256 != high.sha256
