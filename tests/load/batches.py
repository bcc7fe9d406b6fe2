"""A batch beside streams, and over a kill: `python -m tests.load.batches [--lines 10000] [--model FILE]`.

Prints the time between two tokens of the streams while nothing else runs and while a batch does, then kills the process
that serves, and counts what the finished batch has of each line.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from tests.load.process import Server, serving
from tests.load.streams import completion
from tests.support.waiting import eventually

ENDPOINT = "/v1/completions"
PATIENCE = 900.0  # seconds for all lines


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds between two tokens, sorted; how often each line was answered; and when the process was killed."""

    quiet: list[float]
    beside: list[float]
    n_beside: int  # lines that were answered meanwhile
    answers: Counter[str]
    n_before_kill: int
    seconds: float
    status: str


def lines(n: int, n_tokens: int) -> Iterator[bytes]:
    for number in range(n):
        body = {"model": "synthetic", "prompt": f"line {number}", "max_tokens": n_tokens}
        yield json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}).encode()


class Streams:
    """Streams that are opened again when they end, and the seconds between their tokens."""

    def __init__(self, address: tuple[str, int], n: int, n_tokens: int = 2000) -> None:
        self._address = address
        self._sent = completion(n_tokens)
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._last: dict[int, float] = {}
        for _ in range(n):
            self._open()

    def _open(self) -> None:
        connected = socket.create_connection(self._address, 10)
        connected.sendall(self._sent)
        self._sockets[connected.fileno()] = connected
        self._epoll.register(connected.fileno(), select.EPOLLIN)

    def gaps(self, seconds: float) -> list[float]:
        """Follows the streams for a while; returns the seconds between their tokens, sorted."""
        found, end = [], time.monotonic() + seconds
        self._last.clear()
        while (left := end - time.monotonic()) > 0:
            for fd, _ in self._epoll.poll(left):
                data = self._sockets[fd].recv(65_536)
                now = time.monotonic()
                if b"data: {" in data and fd in self._last:
                    found.append(now - self._last[fd])
                self._last[fd] = now
                if not data or b"[DONE]" in data:
                    self._drop(fd)
                    self._open()
        return sorted(found)

    def _drop(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._last.pop(fd, None)
        self._sockets.pop(fd).close()

    def close(self) -> None:
        for fd in list(self._sockets):
            self._drop(fd)


def measure(
    n_lines: int, n_streams: int, seconds: float, rate: float = 100.0, n_tokens: int = 4, model: str = ""
) -> Figures:
    """`rate`: tokens a second of each stream of the synthetic model; `model`: the file of another one."""
    with tempfile.TemporaryDirectory() as folder:
        served = f"synthetic={model}" if model else f"synthetic:?tokens_per_s={rate:g}"
        settings = {"MODEL": served, "FILES_PATH": folder, "SLOTS": "32", "CTX": "4096"}
        with (
            serving(settings) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5) as client,
        ):
            return _measure(server, client, n_lines, n_streams, seconds, n_tokens)


def _measure(
    server: Server, client: openai.OpenAI, n_lines: int, n_streams: int, seconds: float, n_tokens: int
) -> Figures:
    quiet = gaps_of_new(server, n_streams, seconds)
    content = b"\n".join(lines(n_lines, n_tokens))
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    eventually(lambda: counts(client, batch.id), PATIENCE, "an answered line")
    n_began = counts(client, batch.id)
    beside = gaps_of_new(server, n_streams, seconds)
    n_beside = counts(client, batch.id) - n_began
    began = time.monotonic()
    eventually(lambda: counts(client, batch.id) >= n_lines // 2, PATIENCE, "half of the lines")
    n_before = counts(client, batch.id)
    os.kill(server.worker_pid, signal.SIGKILL)  # another one takes its place
    done = _wait_for_end(client, batch.id)
    answers: Counter[str] = Counter()
    for id in filter(None, (done.output_file_id, done.error_file_id)):
        answers.update(json.loads(line)["custom_id"] for line in client.files.content(id).text.splitlines())
    return Figures(quiet, beside, n_beside, answers, n_before, time.monotonic() - began, done.status)


def gaps_of_new(server: Server, n_streams: int, seconds: float) -> list[float]:
    """Returns what streams have that have just begun: the longer their texts are, the longer a token takes."""
    streams = Streams(server.address, n_streams)
    streams.gaps(1.0)
    gaps = streams.gaps(seconds)
    streams.close()
    return gaps


def counts(client: openai.OpenAI, id: str) -> int:
    """Returns how many lines have been answered."""
    found = client.batches.retrieve(id).request_counts
    assert found is not None
    return found.completed + found.failed


def _wait_for_end(client: openai.OpenAI, id: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(openai.APIError, httpx.HTTPError):  # while the new process starts
            batch = client.batches.retrieve(id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
        time.sleep(0.2)
    raise RuntimeError("the batch did not end")


def quantile(sorted_values: list[float], share: float) -> float:
    return sorted_values[int(share * (len(sorted_values) - 1))]


def show(figures: Figures, n_lines: int) -> None:
    for name, gaps in (("quiet", figures.quiet), ("beside a batch", figures.beside)):
        shown = " / ".join(f"{1000 * quantile(gaps, share):.1f}" for share in (0.5, 0.99, 1.0))
        print(f"{f'ITL {name}, p50 / p99 / worst (ms)':48} {shown}")
    print(f"{'p99 beside / quiet':48} {quantile(figures.beside, 0.99) / quantile(figures.quiet, 0.99):.2f}")
    print(f"{'lines answered beside the streams':48} {figures.n_beside}")
    print(f"{'lines answered before the kill':48} {figures.n_before_kill} of {n_lines}")
    print(f"{'seconds alone, the restart among them':48} {figures.seconds:.0f}, then {figures.status}")
    twice = sum(n > 1 for n in figures.answers.values())
    print(f"{'lines answered / lost / twice':48} {len(figures.answers)} / {n_lines - len(figures.answers)} / {twice}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second of each stream")
    parser.add_argument("--line-tokens", type=int, default=4, help="of the answer to a line")
    parser.add_argument("--model", default="", metavar="FILE", help="in place of the synthetic one")
    options = parser.parse_args()
    figures = measure(options.lines, options.streams, options.seconds, options.rate, options.line_tokens, options.model)
    show(figures, options.lines)


if __name__ == "__main__":
    main()
