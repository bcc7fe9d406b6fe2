"""One encoder process as the server sees it: its greeting, its lies and its end."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.images.transfer.pool import SharedPool, pool_geometry
from corosrv.images.vision.link import EncoderCommand, EncoderLink
from tests.support.waiting import wait_until

# What plays the encoder: it says some messages, and then waits or closes its channel.
PROGRAM = """
import os, socket, sys, time
import msgspec
from corosrv.images.transfer.pool import pool_geometry
from corosrv.images.transfer.messages import PROTOCOL_VERSION, BlocksFilled, Hello
from corosrv.workers.wire.codec import framed
from corosrv.workers.wire.messages import Fatal

channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--control") + 1]))
geometry = pool_geometry(2, 16, 4)
for message in [{messages}]:
    channel.sendall(framed(msgspec.msgpack.encode(message)))
{end}
time.sleep(60)
"""
GREETING = "Hello(7, PROTOCOL_VERSION, geometry, 4)"


@dataclass(frozen=True, kw_only=True)
class PlayedEncoder(EncoderCommand):
    program: str

    @property
    def words(self) -> list[str]:
        return [sys.executable, "-c", self.program]


@pytest.fixture
def start():
    pool = SharedPool(pool_geometry(2, 16, 4))
    links = []

    def start(messages: str, end: str = "") -> EncoderLink:
        program = PROGRAM.format(messages=messages, end=end)
        command = PlayedEncoder(model="tiny.gguf", mmproj="mmproj.gguf", n_threads=1, program=program)
        heard = []
        links.append(EncoderLink(command, pool, 7, heard.append))
        links[-1].heard = heard
        links[-1].start()
        return links[-1]

    yield start
    for link in links:
        link.stop()
    pool.close()


def test_an_encoder_is_ready_when_it_has_greeted(start):
    link = start(GREETING)

    wait_until(lambda: link.state is WorkerState.READY)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a child cannot be started in a group of its own alone")
def test_an_encoder_has_a_group_of_its_own_in_the_session_of_its_server(start):
    link = start(GREETING)

    assert os.getsid(link.pid) == os.getsid(0)
    assert os.getpgid(link.pid) == link.pid


@pytest.mark.parametrize(
    "greeting",
    [
        "Hello(6, PROTOCOL_VERSION, geometry, 4)",
        "Hello(7, PROTOCOL_VERSION + 1, geometry, 4)",
        "Hello(7, PROTOCOL_VERSION, pool_geometry(4, 16, 4), 4)",
        "Hello(7, PROTOCOL_VERSION, geometry, 8)",
    ],
    ids=["epoch", "version", "geometry", "width"],
)
def test_an_encoder_that_greets_otherwise_is_not_used(start, greeting):
    link = start(greeting)

    wait_until(lambda: link.state is WorkerState.SETUP_FAILED)

    assert "protocol error" in link.reason
    assert not os.path.exists(f"/proc/{link.pid}")


def test_a_message_before_the_greeting_ends_an_encoder(start):
    link = start("BlocksFilled(7, 1, 1, 0, 1, 1)")

    wait_until(lambda: link.state is WorkerState.SETUP_FAILED)

    assert "came before the greeting" in link.reason
    assert link.heard == []


def test_an_encoder_that_closes_its_channel_is_killed_before_its_end_is_told(start):
    link = start(GREETING, end="channel.close()")

    wait_until(lambda: link.state is WorkerState.DEFUNCT)

    assert "closed its control channel" in link.reason
    assert not os.path.exists(f"/proc/{link.pid}")


def test_the_reason_that_an_encoder_gives_is_told(start):
    link = start("Fatal('no such file')", end="sys.exit(1)")

    wait_until(lambda: link.state is WorkerState.SETUP_FAILED)

    assert link.reason == "the encoder cannot serve: no such file"


def test_messages_of_a_ready_encoder_are_handed_on(start):
    link = start(f"{GREETING}, BlocksFilled(7, 1, 1, 0, 1, 1)")

    wait_until(lambda: link.heard)

    assert link.heard[0].tid == 1


def test_a_program_that_cannot_be_started_is_told(start, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    link = start(GREETING)

    assert link.state is WorkerState.SETUP_FAILED
    assert "could not be started" in link.reason


@pytest.mark.parametrize(("given", "expected"), [(None, b"PASSIVE"), ("ACTIVE", b"ACTIVE")])
def test_compute_threads_of_an_encoder_sleep_while_they_wait_unless_told_otherwise(start, monkeypatch, given, expected):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)

    link = start("")

    environ = Path(f"/proc/{link.pid}/environ")
    variable = b"OMP_WAIT_POLICY=" + expected
    wait_until(lambda: variable in environ.read_bytes().split(b"\0"), "the program that was started has the variable")
