"""Predictions that do nothing, over HTTP: `python -m tests.load.predictions [--seconds 5] [--profile]`.

Prints how many a second go through eight slots, how long one alone takes, whether 500 in a row ever find their one slot
taken, and what a thousand readers of one prediction get. --profile: where the server spends its time (needs py-spy).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

from corosrv.web.http import worker_watch
from tests.load.callers import PATIENCE, run
from tests.load.process import Server, serving, usage

PREDICT = b"POST /predictions HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
HEALTH = b"GET /health HTTP/1.1\r\nHost: load\r\n\r\n"  # what the front itself costs
N_SLOTS = 8
N_IN_A_ROW = 500
N_READERS = 1000
N_OUTPUTS = 20


def throughput(seconds: float, is_profiled: bool) -> str:
    with predicting("nothing.py:Predictor", PREDICTOR_SLOTS=str(N_SLOTS)) as server:
        run(server.address, PREDICT, N_SLOTS, 0.5)  # warm
        with profile(server.worker_pid, seconds) if is_profiled else contextlib.nullcontext():
            predictions = measured(server, seconds, PREDICT)
        others = measured(server, seconds / 2, HEALTH)
    return f"{N_SLOTS} slots:  {predictions}\nthe same for GET /health:  {others}"


def measured(server: Server, seconds: float, request: bytes) -> str:
    """Figures of N_SLOTS connections."""
    before = usage(server.worker_pid)
    outcome = run(server.address, request, N_SLOTS, seconds)
    after = usage(server.worker_pid)
    n = len(outcome.times)
    return (
        f"{n / seconds:.0f}/s, p50 {outcome.percentile(50):.2f} ms, p99 {outcome.percentile(99):.2f} ms, "
        f"{len(outcome.refusals)} refused; processor time of each {(after.cpu - before.cpu) / n * 1e6:.0f} us"
    )


def latency(predictor: str, seconds: float) -> str:
    with predicting(f"nothing.py:{predictor}") as server:
        run(server.address, PREDICT, 1, 0.5)
        outcome = run(server.address, PREDICT, 1, seconds)
    return (
        f"one alone, {predictor}:  p50 {outcome.percentile(50):.2f} ms, p99 {outcome.percentile(99):.2f} ms, "
        f"{len(outcome.refusals)} refused"
    )


def in_a_row() -> str:
    with predicting("nothing.py:SyncPredictor") as server:
        outcome = run(server.address, PREDICT, 1, most=N_IN_A_ROW)
    return f"{len(outcome.times)} in a row on one slot:  {len(outcome.refusals)} refused"


def readers() -> str:
    """Of one prediction, all from its first event on."""
    worker_watch.raise_limit()
    body = json.dumps({"input": {"n": N_OUTPUTS, "seconds": 0.1}}).encode()
    head = "PUT /predictions/crowd HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Type: application/json\r\n"
    ask = f"{head}Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with predicting("streams.py:Predictor") as server, contextlib.ExitStack() as stack:
        before, began = usage(server.worker_pid), time.perf_counter()
        connections = [
            stack.enter_context(socket.create_connection(server.address, PATIENCE)) for _ in range(N_READERS)
        ]
        for connection in connections:
            connection.sendall(ask)
        asked = time.perf_counter() - began
        streams = [b"".join(iter(lambda reader=connection: reader.recv(65536), b"")) for connection in connections]  # type: ignore[misc]
        seconds = time.perf_counter() - began
        after = usage(server.worker_pid)
    whole = [
        stream
        for stream in streams
        if stream.count(b"event: output\n") == N_OUTPUTS and b"event: completed\n" in stream
    ]
    n_events = sum(stream.count(b"\nevent: ") for stream in streams)
    return (
        f"{N_READERS} readers of one prediction:  {len(whole)} got all {N_OUTPUTS} outputs; asked in {asked:.1f} s, "
        f"ended after {seconds:.1f} s; processor time of each event {(after.cpu - before.cpu) / n_events * 1e6:.0f} us"
    )


@contextlib.contextmanager
def predicting(predictor: str, **settings: str) -> Iterator[Server]:
    with serving({"PREDICTOR": f"tests/predictors/{predictor}", "RESULT_TTL": "1", **settings}) as server:
        yield server


@contextlib.contextmanager
def profile(pid: int, seconds: float) -> Iterator[None]:
    """Prints where a process spends its time, by function."""
    spy = shutil.which("py-spy")
    assert spy is not None, "py-spy is not installed"
    with tempfile.NamedTemporaryFile("r") as stacks:
        options = ["--duration", str(int(seconds)), "--format", "raw", "-o", stacks.name]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen([spy, "record", "--pid", str(pid), *options], **quiet):
            yield
        lines = stacks.read().splitlines()
    own: dict[str, int] = {}
    for line in lines:
        frames, _, count = line.rpartition(" ")
        for frame in set(frames.split(";")):
            own[frame] = own.get(frame, 0) + int(count)
    for frame, count in sorted(own.items(), key=lambda item: -item[1])[:60]:
        print(f"{count:6} {frame}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    print(throughput(arguments.seconds, arguments.profile))
    if not arguments.profile:
        print(latency("Predictor", arguments.seconds / 2))
        print(latency("SyncPredictor", arguments.seconds / 2))
        print(in_a_row())
        print(readers())


if __name__ == "__main__":
    main()
