"""A short form of the load with images."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from tests.load.images import Figures, GapClient, Load, corosrv_command, measure, slow_projector

SHORT = Load(n_streams=2, image_size=112, n_layers=2, seconds=0.5, n_rounds=1, n_repeats=3)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_streams_run_and_images_are_answered_beside_them() -> None:
    with slow_projector(SHORT) as mmproj:
        figures = measure("corosrv", corosrv_command(mmproj, SHORT), SHORT)

    assert min(map(len, (*figures.without, *figures.during))) > 0
    assert figures.answers
    assert figures.n_encoded == 1 + len(figures.answers)  # those that came again were not
    assert min(*figures.texts, *figures.repeats, *figures.words) > 0


def test_images_are_compared_with_the_windows_around_them() -> None:
    figures = Figures("some", without=[[0.1], [0.3], [0.5]], during=[[0.2], [0.8]])

    assert figures.ratio(0.99) == pytest.approx((0.2 / 0.2 + 0.8 / 0.4) / 2)


def test_a_window_without_gaps_is_told() -> None:
    with pytest.raises(ValueError, match="no gaps"):
        Figures("some", without=[[0.1], [0.1]], during=[[]]).ratio(0.99)


def test_a_stream_that_came_to_its_end_is_followed_by_another() -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + 3 * b'data: {"text": "a"}\n\n' + b"data: [DONE]\n\n"
    with contextlib.closing(Answers(answer)) as server:
        client = GapClient(server.address, n_streams=1)

        client.fill()
        while client.outcome.n_done < 3 or client.n_open:
            client.run_for(0.1)
            if client.outcome.n_done < 3:
                client.fill()

    assert client.outcome.n_failed == 0


def test_a_stream_that_ends_early_is_told() -> None:
    with contextlib.closing(Answers(b"HTTP/1.1 500 Oh\r\n\r\n")) as server:
        client = GapClient(server.address, n_streams=1)

        with pytest.raises(RuntimeError, match="a stream ended early: closed before"):
            client.watch(5)


class Answers:
    """A server that gives the same answer to every connection, and closes it."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(self._answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
