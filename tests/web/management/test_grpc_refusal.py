"""Clients of gRPC at the management socket: they hear what to do instead, whatever they call."""

from __future__ import annotations

import socket
import struct

import pytest

from corosrv.web.management.listener import MAX_FRAME, PREFACE, WORDS, GrpcRefusal
from tests.web.management.serving import in_thread, listening
from tests.workers.manager.scripted import TIMEOUT, pool_card

HEADERS, SETTINGS, PING = 0x1, 0x4, 0x6
END_HEADERS, ACK = 0x4, 0x1


def frame(kind: int, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    return struct.pack(">BHBBL", 0, len(content), kind, flags, stream) + content


def test_settings_and_pings_are_acknowledged():
    answer = GrpcRefusal().receive(frame(SETTINGS, content=b"\0" * 6) + frame(PING, content=b"12345678"))

    assert answer == frame(SETTINGS, ACK) + frame(PING, ACK, content=b"12345678")


def test_acknowledgements_are_not_answered():
    assert GrpcRefusal().receive(frame(SETTINGS, ACK) + frame(PING, ACK, content=b"12345678")) == b""


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_call_is_refused_when_its_head_is_complete_however_it_arrives(size: int):
    refusal = GrpcRefusal()
    sent = frame(HEADERS, 0, 3, b"never decoded") + frame(0x9, END_HEADERS, 3, b"nor this") + frame(0x0, 1, 3, b"data")

    answers = [refusal.receive(sent[start : start + size]) for start in range(0, len(sent), size)]

    answer = b"".join(answers)
    assert answer.count(WORDS) == 1
    assert struct.unpack_from(">BHBBL", answer)[2:] == (HEADERS, 0x5, 3)


def test_a_frame_over_the_limit_ends_the_connection_and_is_not_kept():
    refusal = GrpcRefusal()

    assert refusal.receive(struct.pack(">BHBBL", 0, MAX_FRAME + 1, 0, 0, 1)) == b""

    assert refusal.is_over
    assert refusal.receive(frame(PING, content=b"12345678")) == b""


def test_a_broken_preface_ends_the_connection():
    with listening(pool_card()) as management, socket.socket(socket.AF_UNIX) as client:

        def send() -> bytes:
            client.settimeout(TIMEOUT)
            client.connect(management.listener.path)
            client.sendall(PREFACE[:-4] + b"XX\r\n")
            return client.recv(100)

        assert in_thread(send) == b""


@pytest.mark.parametrize("method", ["RegisterModel", "UnregisterModel", "Heartbeat"])
def test_grpcs_own_client_hears_why_it_may_not_register(method: str):
    grpc = pytest.importorskip("grpc")
    with listening(pool_card()) as management:

        def call() -> tuple[str, str]:
            with grpc.insecure_channel(f"unix:{management.listener.path}") as channel:
                ask = channel.unary_unary(f"/anyserve.WorkerManagement/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    ask(b"\x0a\x03add", timeout=TIMEOUT)
                return caught.value.code().name, caught.value.details()

        assert in_thread(call) == ("PERMISSION_DENIED", WORDS.decode())
