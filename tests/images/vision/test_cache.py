"""Encoded images that are kept."""

from corosrv.contracts.jobs import Rows, Tokens
from corosrv.images.vision.task import EncodedImage, ImageCache

WIDTH = 4


def image_of(n_rows: int) -> EncodedImage:
    return EncodedImage((Tokens((1,)), Rows.of_data(bytes(16 * n_rows), WIDTH), Tokens((2,))))


def test_an_image_is_found_again():
    cache, image = ImageCache(1000), image_of(2)

    cache.put(("", "a"), image)

    assert cache.get(("", "a")) is image
    assert (cache.n_bytes, cache.n_hits) == (32, 1)


def test_positions_of_rows_take_room_as_well():
    cache = ImageCache(1000)

    cache.put(("", "a"), EncodedImage((Rows.of_data(bytes(32), WIDTH, n_positions=1, positions=bytes(32)),)))

    assert cache.n_bytes == 64


def test_an_image_of_one_caller_is_not_anothers():
    cache = ImageCache(1000)

    cache.put(("one", "a"), image_of(2))

    assert cache.get(("another", "a")) is None


def test_those_used_longest_ago_make_room():
    cache = ImageCache(64)
    cache.put(("", "a"), image_of(2))
    cache.put(("", "b"), image_of(2))
    cache.get(("", "a"))

    cache.put(("", "c"), image_of(2))

    assert cache.get(("", "b")) is None
    assert cache.get(("", "a")) is not None
    assert cache.n_bytes == 64


def test_an_image_as_large_as_all_the_room_is_kept():
    cache = ImageCache(64)

    cache.put(("", "a"), image_of(4))

    assert cache.get(("", "a")) is not None


def test_an_image_larger_than_all_the_room_drops_nothing():
    cache = ImageCache(64)
    cache.put(("", "a"), image_of(2))

    cache.put(("", "b"), image_of(5))

    assert cache.get(("", "a")) is not None
    assert cache.get(("", "b")) is None


def test_an_image_that_comes_again_is_counted_once():
    cache = ImageCache(1000)

    for _ in range(2):
        cache.put(("", "a"), image_of(2))

    assert (cache.n_bytes, len(cache)) == (32, 1)
