"""An encoder stands still while the loop computes, and neither an image nor the end of the server waits for ever."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.image_server import Files, chat, png, post
from tests.serve.server import servers
from tests.serve.wire import CHAT, request
from tests.support.faulty_images import SLOW
from tests.support.waiting import eventually

CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def files(tmp_path) -> Files:
    return Files.write(tmp_path)


@pytest.fixture
def server(files, tmp_path, cache):
    with servers(tmp_path, cache) as started:
        yield files.start(started, threads=CPUS, encoder_threads=CPUS, context_shift=1)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def state_of(pid: int) -> str:
    """Returns the kernel's letter for what a process does; T: it is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "it has ended"


@pytest.fixture
def encoder(server):
    """The pid of an encoder that has an image at hand, beside a stream that is longer than the test."""
    (pid,) = server.worker.children_of("corosrv.images.encoder")
    stream = server.connect()
    stream.send(request("POST", CHAT, chat(text="Only text", max_tokens=1_000_000, stream=True, ignore_eos=True)))
    with stream:
        yield pid


def test_an_encoder_is_stopped_during_steps_and_its_image_is_answered(server, files, encoder, threads):
    waiting = threads.submit(post, server, chat(png(width=SLOW)))
    eventually(lambda: state_of(encoder) == "T", what="a stop of the encoder")
    assert os.sched_getscheduler(encoder) == os.SCHED_BATCH

    files.gate.touch()

    assert waiting.result(60).status == 200
    eventually(lambda: state_of(encoder) == "S", what="an encoder that waits for images")


def test_a_stopped_encoder_ends_with_its_server(server, encoder):
    with server.connect() as image:
        image.send(request("POST", CHAT, chat(png(width=SLOW))))
        eventually(lambda: state_of(encoder) == "T", what="a stop of the encoder")

    server.worker.kill()

    eventually(lambda: state_of(encoder) in ("Z", "it has ended"), what="the end of the encoder")
