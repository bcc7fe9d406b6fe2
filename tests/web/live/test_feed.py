"""The feed of frames: made once for all, only while somebody watches, no more often than it may be, kept by nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import gevent
import msgspec
import pytest

from corosrv.base.errors import ReadTimeout, ShuttingDown, Unavailable
from corosrv.web import live
from corosrv.web.live import FrameReader, LiveFeed, LiveFrame, LiveHttp, LiveHub
from tests.support.waiting import wait_until

TIMEOUT = 30.0


class Frames:
    """Makes frames that count themselves, and notes when, for how many, and how often it was begun."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.n_watchers: list[int] = []
        self.n_begun = 0

    def begin(self) -> Callable[[int], LiveFrame]:
        self.n_begun += 1
        return self.make

    def make(self, n_watchers: int) -> LiveFrame:
        self.times.append(time.monotonic())
        self.n_watchers.append(n_watchers)
        return LiveFrame(len(self.times), "ready", LiveHub(0.0, 0, 0.0, 0.0), LiveHttp(0, 0, n_watchers))


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def feed(frames: Frames) -> Iterator[LiveFeed]:
    gevent.get_hub().loop.update_now()  # tests before it may have computed for long: waits would end at once
    feed = LiveFeed(frames.begin)
    yield feed
    feed.close()


def number(frame: bytes) -> int:
    return int(msgspec.json.decode(frame)["time"])


def read(reader: FrameReader, n: int) -> list[int]:
    return [number(reader.take(TIMEOUT)[0]) for _ in range(n)]


def test_a_thousand_watchers_cost_one_encoding_a_frame(feed, frames):
    with ExitStack() as stack:
        readers = [stack.enter_context(feed.watch()) for _ in range(1000)]
        reading = [gevent.spawn(reader.take, TIMEOUT) for reader in readers]
        gevent.joinall(reading, TIMEOUT, raise_error=True)

    (first,) = {id(greenlet.value[0]) for greenlet in reading}  # the very same bytes
    assert first
    assert feed.n_frames == len(frames.times)  # one, unless the machine is slow


def test_frames_come_at_most_four_times_a_second(feed, frames):
    with feed.watch() as reader:
        read(reader, 4)

    assert min(later - earlier for earlier, later in zip(frames.times, frames.times[1:], strict=False)) >= 0.249


def test_who_comes_and_goes_gets_no_more_frames_than_who_stays(feed, frames):
    began = time.monotonic()
    for _ in range(4):
        with feed.watch() as reader:
            read(reader, 1)
        gevent.sleep(0)

    assert time.monotonic() - began >= 3 * 0.249


def test_with_many_watchers_frames_come_less_often(feed, frames, monkeypatch):
    monkeypatch.setattr(live, "SENDS_PER_S", 4)
    with feed.watch() as reader, feed.watch():
        read(reader, 2)

    assert frames.times[1] - frames.times[0] >= 0.499


def test_no_frame_is_made_while_nobody_watches(feed, frames):
    with feed.watch() as reader:
        read(reader, 1)
    gevent.sleep(0.6)

    assert len(frames.times) == 1


def test_who_watches_again_begins_anew(feed, frames):
    for _ in range(2):
        with feed.watch() as reader:
            read(reader, 1)
        wait_until(lambda: feed._maker is None, what="the end of the frames' greenlet")

    assert frames.n_begun == 2


def test_a_slow_reader_holds_the_last_frame_alone(feed):
    with feed.watch() as reader, feed.watch() as other:
        read(other, 3)

        assert read(reader, 1) == [3]
        with pytest.raises(ReadTimeout):
            reader.take(0.05)


def test_a_sink_is_called_until_it_has_enough(feed):
    seen = []

    def sink(frames: list[bytes]) -> bool:
        seen.extend(map(number, frames))
        return len(seen) < 3

    with feed.watch() as reader:
        reader.pump(sink, TIMEOUT)

    assert seen == [1, 2, 3]


def test_what_a_sink_raises_is_its_greenlets_and_no_others(feed):
    def sink(frames: list[bytes]) -> bool:
        raise OSError("gone")

    with feed.watch() as reader, feed.watch() as other:
        with pytest.raises(OSError, match="gone"):
            reader.pump(sink, TIMEOUT)

        assert read(other, 1)


def test_a_feed_that_closes_ends_its_readers_and_takes_no_other(feed):
    with feed.watch() as reader:
        reading = gevent.spawn(list, reader)
        gevent.sleep(0)  # it reads
        feed.close()

        assert len(reading.get(timeout=TIMEOUT)) <= 1
        assert reader.is_finished
    with pytest.raises(ShuttingDown):
        feed.watch()


def test_a_bug_ends_the_readers_and_the_next_watcher_gets_frames(frames, caplog):
    makers = iter([lambda n_watchers: 1 / 0, frames.make])
    feed = LiveFeed(lambda: next(makers))
    with feed.watch() as reader:
        assert reader.take(TIMEOUT) == []
    with feed.watch() as reader:
        assert read(reader, 1)

    assert "the live picture could not be made" in caplog.text


def test_there_is_a_most_of_watchers(feed, monkeypatch):
    monkeypatch.setattr(live, "MOST_WATCHERS", 1)
    with feed.watch(), pytest.raises(Unavailable, match="1 clients watch already"):
        feed.watch()

    with feed.watch() as reader:
        assert read(reader, 1)


def test_a_single_frame_has_one_before_it(feed, frames):
    assert number(feed.single_frame()) == 2
    assert frames.n_begun == 1
