"""The processes that decode images: their limits, their ends, and what these cost requests."""

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from corosrv.base.errors import DecoderUnavailable, InvalidImage, ProtocolError, TooBusy
from corosrv.contracts.jobs import Image
from corosrv.images import decoders as pools
from corosrv.images.decoder import CPU_SECONDS, PIXEL_BYTES, SPARE_BYTES
from corosrv.images.decoders import COMMAND, DecoderPool, DecoderProcess
from corosrv.images.decoding import DecodeImage, ImageDecoded, ImageFormat
from tests.images.pictures import RED, plain
from tests.support.children import output, python
from tests.support.descriptors import n_descriptors
from tests.support.faulty_images import CRASHING, FOLDER, GREEDY, HANGING
from tests.support.waiting import wait_until

WAIT = 30.0  # seconds for what should come soon
FAULTY = ("env", f"PYTHONPATH={FOLDER}", *COMMAND)


@pytest.fixture
def made() -> list[DecoderProcess]:
    """The processes that a test's pool has made, the oldest first."""
    return []


@pytest.fixture
def pool(made):
    """A pool whose processes have faults, and decode for two seconds by the clock at most."""

    def make() -> DecoderProcess:
        made.append(DecoderProcess(FAULTY, timeout=timeout[0]))
        return made[-1]

    timeout = [WAIT]
    pool = DecoderPool(make)
    pool.set_timeout = partial(timeout.__setitem__, 0)
    yield pool
    pool.close()


def decode(pool: DecoderPool, width: int = 6, height: int = 4) -> Image:
    return pool.decode(plain("PNG", (width, height)), ImageFormat.PNG, width * height, "image")


def test_one_image_after_another_is_decoded_by_one_process(pool, made):
    images = [decode(pool), decode(pool, 300, 400)]

    assert [(image.width, image.height, image.pixels) for image in images] == [
        (6, 4, bytes(RED) * 24),
        (300, 400, bytes(RED) * 120_000),
    ]
    assert images[0] == Image.of_pixels(6, 4, bytes(RED) * 24)
    assert len(made) == 1


def test_an_image_that_crashes_its_decoder_is_refused_and_others_are_not(pool, made):
    crashing = gevent.spawn(decode, pool, CRASHING)
    other = gevent.spawn(decode, pool)

    with pytest.raises(InvalidImage, match=r"image: the PNG cannot be decoded: .* by signal 11 \(SIGSEGV\)") as refused:
        crashing.get(timeout=WAIT)

    assert refused.value.param == "image"
    assert other.get(timeout=WAIT).width == 6
    assert decode(pool).width == 6
    assert len(made) == 2


def test_an_image_that_is_never_decoded_is_refused_in_time(pool, made):
    decode(pool)
    pool.set_timeout(0.3)
    pool.start()

    with pytest.raises(InvalidImage, match="image: the PNG takes too long to be decoded"):
        decode(pool, HANGING)

    pool.set_timeout(WAIT)
    assert not made[1].is_alive
    with pytest.raises(ProcessLookupError):
        os.kill(made[1].pid, 0)
    assert decode(pool).width == 6


def test_an_image_that_takes_too_much_of_the_processor_is_refused_as_too_slow(pool, made):
    decode(pool)
    decoding = gevent.spawn(decode, pool, HANGING)
    gevent.idle()

    os.kill(made[0].pid, signal.SIGXCPU)  # as the kernel does

    with pytest.raises(InvalidImage, match="image: the PNG takes too long to be decoded"):
        decoding.get(timeout=WAIT)


def test_an_image_that_takes_too_much_memory_is_refused_and_its_decoder_goes_on(pool, made):
    with pytest.raises(InvalidImage, match="image: the PNG takes too much memory to be decoded"):
        decode(pool, GREEDY)

    assert decode(pool).width == 6
    assert len(made) == 1


def test_an_image_has_the_memory_of_its_pixels_and_ten_seconds_of_the_processor(pool, made):
    decode(pool, 100, 100)

    memory, _ = resource.prlimit(made[0].pid, resource.RLIMIT_AS)
    seconds, _ = resource.prlimit(made[0].pid, resource.RLIMIT_CPU)
    with open(f"/proc/{made[0].pid}/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    assert taken < memory <= taken + 2 * SPARE_BYTES + PIXEL_BYTES * 10_000
    assert 0 < seconds <= CPU_SECONDS + 10
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        assert resource.prlimit(made[0].pid, kind) == (0, 0)


def test_a_decoder_that_computes_beyond_its_time_is_ended_by_the_kernel():
    program = "from corosrv.images.decoder import limit_resources\nlimit_resources(1 << 30, 0.01)\nwhile True: pass"

    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == -signal.SIGXCPU


def test_who_kills_a_decoder_costs_its_request_another_try(pool, made):
    decode(pool)
    decoding = gevent.spawn(decode, pool, HANGING)
    gevent.idle()

    os.kill(made[0].pid, signal.SIGKILL)

    with pytest.raises(DecoderUnavailable, match="was killed: try again"):
        decoding.get(timeout=WAIT)
    assert decode(pool).width == 6


def test_a_decoder_that_died_while_it_was_idle_is_not_used(pool, made):
    decode(pool)
    os.kill(made[0].pid, signal.SIGKILL)
    wait_until(lambda: not made[0].is_alive)

    assert decode(pool).width == 6
    assert len(made) == 2


def test_no_more_images_are_decoded_at_once_than_there_are_processes(pool, made):
    hanging = [gevent.spawn(decode, pool, HANGING) for _ in range(2)]
    third = gevent.spawn(decode, pool)
    gevent.idle()
    is_waiting = not third.ready()

    os.kill(made[0].pid, signal.SIGKILL)

    assert third.get(timeout=WAIT).width == 6
    assert is_waiting
    os.kill(made[1].pid, signal.SIGKILL)
    gevent.joinall(hanging, timeout=WAIT)
    assert [type(one.exception) for one in hanging] == [DecoderUnavailable] * 2
    assert len(made) == 3


def test_an_image_that_waits_too_long_for_its_turn_is_told_to_come_again(pool, made, monkeypatch):
    monkeypatch.setattr(pools, "WAIT", 0.01)
    hanging = [gevent.spawn(decode, pool, HANGING) for _ in range(2)]
    gevent.idle()

    with pytest.raises(TooBusy, match="too many images are being decoded"):
        decode(pool)

    for one in made:
        one.close()
    gevent.joinall(hanging, timeout=WAIT)


def test_a_request_that_is_killed_leaves_its_decoder_to_others(pool, made):
    decode(pool)
    reading = gevent.spawn(decode, pool, 500, 500)
    gevent.idle()

    reading.kill()

    assert decode(pool).width == 6
    assert decode(pool).width == 6
    assert len(made) <= 2
    assert all(one.is_alive for one in made)


def test_a_decoder_that_cannot_be_started_is_told():
    pool = DecoderPool(partial(DecoderProcess, ["/no/such/program"]))
    pool.start()

    with pytest.raises(DecoderUnavailable, match="no process could be started"):
        decode(pool)


def test_the_end_of_a_pool_ends_its_processes_those_that_decode_when_they_have(pool, made):
    decode(pool)
    pool.start()
    decoding = gevent.spawn(decode, pool, 500, 500)
    gevent.idle()

    pool.close()

    assert decoding.get(timeout=WAIT).width == 500
    wait_until(lambda: not any(one.is_alive for one in made))


def test_a_process_that_died_unseen_decodes_nothing_and_says_so_at_once(made):
    decoder = DecoderProcess()
    os.kill(decoder.pid, signal.SIGKILL)
    wait_until(lambda: not decoder.is_alive)

    with gevent.Timeout(5), pytest.raises(DecoderUnavailable, match="was killed: try again"):
        decoder.decode(DecodeImage("PNG", 4, 24, "image"), b"data", -1)


@pytest.mark.own_process
def test_images_leave_no_descriptors_open_whether_they_are_decoded_or_not(pool, made):
    decode(pool)
    before = n_descriptors()

    for _ in range(3):
        decode(pool)
        with pytest.raises(InvalidImage, match="truncated or damaged"):
            pool.decode(plain()[:50], ImageFormat.PNG, 24, "image")

    assert n_descriptors() == before


def test_a_decoder_keeps_no_descriptors_of_images_and_gives_way_to_its_server(pool, made):
    decode(pool)
    fds = Path(f"/proc/{made[0].pid}/fd")
    before = len(list(fds.iterdir()))

    for _ in range(3):
        decode(pool)

    # What it closes behind an answer is closed before the next image is read.
    assert len(list(fds.iterdir())) <= before + 2
    assert os.getpriority(os.PRIO_PROCESS, made[0].pid) - os.getpriority(os.PRIO_PROCESS, 0) == 5


def test_a_decoder_ends_with_its_server_even_in_the_middle_of_an_image():
    program = f"""
        import os, signal
        from corosrv.images.decoding import DecodeImage
        from corosrv.images.decoders import DecoderProcess
        from corosrv.images.decoders import _room
        from tests.images.pictures import plain
        decoder = DecoderProcess({FAULTY!r}, timeout=1.0)
        decoder._link.end_within = lambda seconds: os.kill(os.getpid(), signal.SIGKILL)
        print(decoder.pid, flush=True)
        data = plain("PNG", ({HANGING}, 4))
        with _room({3 * 4 * HANGING}) as room:
            decoder.decode(DecodeImage("PNG", len(data), {4 * HANGING}, "image"), data, room)
    """
    pid = int(python(program).stdout)

    wait_until(lambda: pid not in map(int, filter(str.isdigit, os.listdir("/proc"))), "the end of the decoder")


def test_limits_of_the_system_are_not_raised():
    program = """
        import resource
        from corosrv.images.decoder import limit_resources
        limits = {resource.RLIMIT_AS: 8 << 30, resource.RLIMIT_CPU: 100}
        for kind, limit in limits.items():
            resource.setrlimit(kind, (limit, limit))
        limit_resources(1 << 50, 1000.0)
        print(*(resource.getrlimit(kind) == (limit, limit) for kind, limit in limits.items()))
        limit_resources(1 << 20, 1.0)
        print(*(resource.getrlimit(kind)[0] < limit for kind, limit in limits.items()))
    """

    assert output(program).splitlines() == ["True True", "True True"]


@pytest.mark.parametrize(
    ("n_left", "words"),
    [(0, "there is no room for the pixels of the image"), (1, "the image could not be handed to its decoder")],
)
def test_an_image_that_no_descriptors_are_left_for_is_told_to_come_again(pool, made, n_left: int, words: str):
    decode(pool)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_fd = os.open(os.devnull, os.O_RDONLY)
    os.close(next_fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_fd + n_left, limits[1]))
    try:
        with pytest.raises(DecoderUnavailable, match=f"{words}: Too many open files"):
            decode(pool)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert decode(pool).width == 6
    assert len(made) == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1)])
def test_an_image_of_a_single_line_or_column_is_decoded(pool, size):
    assert (decode(pool, *size).width, decode(pool, *size).height) == size


@pytest.mark.parametrize(("width", "height"), [(0, 4), (4, 0), (5, 5), (-4, -6)])
def test_pixels_that_no_decoder_makes_are_a_fault_of_its_process(pool, monkeypatch, width: int, height: int):
    def lie(self: DecoderProcess, message: ImageDecoded) -> None:
        self._answer = ImageDecoded(width, height)
        self._news.set()

    monkeypatch.setattr(DecoderProcess, "on_control", lie)

    with pytest.raises(ProtocolError, match="of 24 pixels"):
        decode(pool)


def test_other_greenlets_run_while_an_image_is_decoded(pool):
    has_run = Event()
    decoding = gevent.spawn(decode, pool, 1000, 1000)

    gevent.spawn(has_run.set)

    assert has_run.wait(WAIT)
    assert not decoding.ready()
    assert decoding.get(timeout=WAIT).width == 1000


def test_the_room_of_pixels_cannot_be_cut_by_their_decoder():
    with pools._room(100) as room, pytest.raises(PermissionError):
        os.ftruncate(room, 10)


def test_a_message_without_its_files_ends_the_decoder():
    program = (
        "from corosrv.images.decoder import answer\n"
        "from corosrv.images.decoding import DecodeImage\n"
        "answer(DecodeImage('PNG', 1, 1, 'image'), ())"
    )

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert "0 descriptors came with an image, where 2 are needed" in run.stderr
