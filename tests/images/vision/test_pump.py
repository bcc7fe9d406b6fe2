"""The pump between a transfer core and an encoder, which is played by hand."""

import math
import os
import time

import gevent
import pytest

from corosrv.images.transfer.core import TransferCore
from corosrv.images.transfer.messages import (
    PROTOCOL_VERSION,
    CancelTransfer,
    EncodeFailed,
    GrantBlocks,
    Hello,
    ImagePixels,
    OpenTransfer,
    RowSegment,
    TransferMeta,
)
from corosrv.images.transfer.pool import SharedPool, pool_geometry
from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import TransferLimits
from corosrv.images.vision import pump
from corosrv.images.vision.pump import MOST_MESSAGES, ThreadTimes, TransferPump
from tests.images.vision.encoders import image
from tests.support.waiting import wait_until

N_EMBD = 4
GEOMETRY = pool_geometry(2, 16, N_EMBD)
MOST_PROCESSES = 1 << 22  # no process of Linux has a greater id


class HandLink:
    """An encoder process that does nothing: it records what it is sent."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.pid = MOST_PROCESSES + epoch  # no process, for the pump measures what the threads of this one do
        self.messages: list = []
        self.pixels: list[bytes] = []
        self.faults: list[str] = []

    def send(self, message, fds=()) -> None:
        self.messages.append(message)
        self.pixels += [os.pread(fd, 1 << 20, 0) for fd in fds]

    def kill(self, fault: str) -> None:
        self.faults.append(fault)


class HandTurns:
    """Takes no turns: it records what is encoded after each step, and says for how long the encoder was held."""

    def __init__(self) -> None:
        self.told: list[tuple[int | None, int, float]] = []
        self.is_holding = False

    def set_encoding(self, *told) -> None:
        self.told.append(told)

    def held_seconds(self) -> float:
        return time.monotonic() if self.is_holding else 0.0


class Bench:
    """A pump with its core, its pool and the images of its transfers."""

    def __init__(self, encode_limit: float = 10.0, **limits: float) -> None:
        self.pool = SharedPool(GEOMETRY)
        self.core = TransferCore(GEOMETRY, TransferLimits(**limits), self.pool)
        self.images: dict[int, object] = {}
        self.n_steps = 0
        self.late: list[tuple[int, bool]] = []
        self.turns = HandTurns()
        self.pump = TransferPump(
            self.core, self.images.get, self._on_step, encode_limit, lambda *late: self.late.append(late), self.turns
        )
        self.link = HandLink()
        self.pump.start()
        self.pump.encoder_up(self.link)

    def _on_step(self) -> None:
        self.n_steps += 1

    def open(self, seed: int = 1) -> int:
        """Sends an image, and returns the rid of its transfer."""
        picture = image(seed)
        n_sent = len(self.link.messages)
        rid = self.core.submit(ImagePixels(picture.width, picture.height))
        self.images[rid] = picture
        self.pump.wake()
        wait_until(lambda: len(self.link.messages) > n_sent)
        return rid

    def describe(self, tid: int, n_rows: int = 3) -> None:
        self.pump.deliver(TransferMeta(self.link.epoch, tid, n_rows, N_EMBD, (RowSegment(n_rows),)))

    def wait_for_step(self) -> None:
        n_steps = self.n_steps
        wait_until(lambda: self.n_steps > n_steps)

    def close(self) -> None:
        self.pump.stop()
        self.pool.close()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def hasty_bench():
    """Gives an encode a twentieth of a second."""
    bench = Bench(encode_limit=0.05)
    yield bench
    bench.close()


@pytest.fixture
def impatient_bench():
    """Gives the answer to a cancellation a twentieth of a second, and an encode time enough."""
    bench = Bench(drain_timeout=0.05)
    yield bench
    bench.close()


def test_an_image_is_opened_with_its_pixels_and_granted_blocks_once_it_is_described(bench):
    bench.open()
    bench.describe(1)
    wait_until(lambda: len(bench.link.messages) == 2)

    opening, grant = bench.link.messages
    assert opening == OpenTransfer(1, 1, ImagePixels(56, 56))
    assert bench.link.pixels == [image().pixels]
    assert isinstance(grant, GrantBlocks)


def test_the_image_at_hand_is_the_first_that_was_not_reported(bench):
    bench.open(1)
    bench.open(2)
    at_first = bench.pump.current_image

    bench.pump.deliver(EncodeFailed(1, 1, "encode", "no"))

    assert at_first == image(1).sha256
    assert bench.pump.current_image == image(2).sha256


def test_nothing_is_being_encoded_when_all_was_described(bench):
    bench.open()

    bench.describe(1)

    assert bench.pump.current_image is None
    assert bench.pump.encode_due_at == math.inf


def test_the_process_that_encodes_is_told_until_all_was_described_or_it_ends(bench):
    bench.open(1)
    wait_until(lambda: bench.turns.told[-1][0] == bench.link.pid)

    bench.describe(1)
    wait_until(lambda: bench.turns.told[-1][0] is None)
    bench.open(2)
    wait_until(lambda: bench.turns.told[-1][0] == bench.link.pid)
    bench.pump.encoder_down(bench.link)
    wait_until(lambda: bench.turns.told[-1][0] is None)


def test_a_cancelled_image_is_told_to_the_encoder_and_not_waited_for(bench):
    rid = bench.open()
    due_at = bench.pump.encode_due_at

    bench.core.cancel(rid)
    bench.pump.wake()
    wait_until(lambda: len(bench.link.messages) == 2)

    assert due_at < math.inf
    assert bench.link.messages[1] == CancelTransfer(1, 1)
    assert bench.pump.encode_due_at == math.inf


def test_an_image_that_nobody_wants_any_more_is_not_sent(bench):
    rid = bench.core.submit(ImagePixels(56, 56))
    bench.core.tick()
    bench.core.cancel(rid)
    bench.pump.wake()

    other = bench.open(2)

    assert [message.tid for message in bench.link.messages if isinstance(message, OpenTransfer)] == [2]
    assert bench.core.result(other) is None


def test_a_flood_of_messages_is_ticked_in_between(bench):
    rid = bench.open()
    bench.describe(1)
    for _ in range(MOST_MESSAGES - 1):
        bench.describe(1)

    granted = [message for message in bench.core.outbox if isinstance(message, GrantBlocks)]

    assert len(granted) == 1
    assert bench.core.result(rid) is None


def test_what_an_encoder_was_not_sent_before_its_end_is_not_sent_to_the_next(bench):
    rid = bench.core.submit(ImagePixels(56, 56))
    bench.images[rid] = image()
    bench.core.tick()

    bench.pump.encoder_down(bench.link)
    following = HandLink(epoch=2)
    bench.pump.encoder_up(following)
    bench.wait_for_step()

    assert following.messages == []
    assert bench.core.result(rid).result is TransferResult.LOST


def test_a_step_that_fails_kills_the_encoder_and_the_pump_goes_on(bench, caplog):
    bench.images.clear()
    broken = bench.core.tick

    def fail() -> None:
        bench.core.tick = broken
        raise RuntimeError("a bug")

    bench.core.tick = fail
    bench.pump.wake()
    wait_until(lambda: bench.link.faults)

    assert "a step of the transfers failed" in caplog.text
    gevent.idle()
    assert bench.open(2)


def test_an_encoder_that_does_not_end_an_encode_is_killed_once(hasty_bench):
    hasty_bench.open()
    wait_until(lambda: hasty_bench.link.faults)

    hasty_bench.pump.wake()
    hasty_bench.wait_for_step()

    assert hasty_bench.link.faults == ["it did not end an encode in time"]
    assert hasty_bench.pump.n_kills == 1
    assert hasty_bench.late == [(1, False)]


def test_an_encoder_that_was_killed_for_its_time_was_at_no_image(hasty_bench):
    hasty_bench.open()

    wait_until(lambda: hasty_bench.link.faults)

    assert hasty_bench.pump.is_late
    assert hasty_bench.pump.current_image is None
    hasty_bench.pump.encoder_down(hasty_bench.link)
    assert not hasty_bench.pump.is_late


def test_the_time_in_which_an_encoder_is_held_does_not_count(hasty_bench):
    hasty_bench.turns.is_holding = True
    hasty_bench.pump.encoder_down(hasty_bench.link)
    hasty_bench.link = HandLink(epoch=2)
    hasty_bench.pump.encoder_up(hasty_bench.link)
    hasty_bench.open()
    began = time.monotonic()

    wait_until(lambda: time.monotonic() - began > 0.2)  # four times the limit

    assert hasty_bench.link.faults == []


def test_an_encoder_that_does_not_work_is_killed_before_its_time_is_over(monkeypatch):
    monkeypatch.setattr(pump, "read_threads", lambda pid: {pid: ThreadTimes(0.0, 0.0)})
    bench = Bench(encode_limit=0.2)
    bench.open()

    wait_until(lambda: bench.link.faults)

    assert bench.link.faults == ["its encode stands still"]
    assert bench.late == [(1, True)]
    bench.close()


def test_turns_are_told_each_image_and_how_long_images_usually_take(bench):
    for number in (1, 2):
        bench.open(number)
        wait_until(lambda number=number: bench.turns.told[-1][:2] == (bench.link.pid, number))
        assert (bench.turns.told[-1][2] > 0) == (number > 1)
        bench.describe(number)


def test_the_encoder_that_follows_a_killed_one_has_its_own_time(hasty_bench):
    hasty_bench.open()
    wait_until(lambda: hasty_bench.link.faults)
    hasty_bench.pump.encoder_down(hasty_bench.link)
    hasty_bench.link = HandLink(epoch=2)
    hasty_bench.pump.encoder_up(hasty_bench.link)

    hasty_bench.open(2)
    wait_until(lambda: hasty_bench.link.faults)

    assert hasty_bench.pump.n_kills == 2


def test_an_encoder_that_does_not_answer_a_cancellation_is_killed(impatient_bench):
    rid = impatient_bench.open()
    impatient_bench.describe(1)
    wait_until(lambda: len(impatient_bench.link.messages) == 2)  # blocks were granted, which it may be writing to

    impatient_bench.core.cancel(rid)
    impatient_bench.pump.wake()
    wait_until(lambda: impatient_bench.link.faults)

    assert impatient_bench.link.faults == ["it did not answer a cancellation"]


def test_the_end_of_an_encoder_ends_its_transfers_at_once(bench):
    rid = bench.open()
    gevent.idle()

    bench.pump.encoder_down(bench.link)
    bench.wait_for_step()

    assert bench.core.result(rid).result is TransferResult.LOST
    assert bench.pump.current_image is None
    assert bench.pump.encode_due_at == math.inf


def test_an_encoder_that_is_gone_is_not_killed_for_a_fault_of_the_server(bench):
    bench.pump.encoder_down(bench.link)
    bench.core.tick = lambda: 1 / 0

    bench.pump.wake()
    gevent.idle()

    assert bench.link.faults == []


def test_an_image_that_came_while_there_was_no_encoder_is_sent_to_the_next(bench):
    bench.pump.encoder_down(bench.link)
    gevent.idle()
    rid = bench.core.submit(ImagePixels(56, 56))
    bench.images[rid] = image()
    following = HandLink(epoch=2)

    bench.pump.encoder_up(following)
    wait_until(lambda: following.messages)

    assert bench.core.result(rid) is None


def test_a_pump_that_was_stopped_makes_no_step(bench):
    gevent.idle()
    bench.pump.stop()
    n_steps = bench.n_steps

    bench.pump.wake()
    gevent.idle()

    assert bench.n_steps == n_steps


def test_a_greeting_changes_nothing(bench):
    bench.open()
    due_at = bench.pump.encode_due_at

    bench.pump.deliver(Hello(1, PROTOCOL_VERSION, GEOMETRY, N_EMBD))

    assert bench.pump.encode_due_at == due_at
