"""Two upstreams that fail in turn under load: `python -m tests.load.upstream_faults [--llama-server PROGRAM]`.

Every five seconds one is killed with SIGKILL and started again, or stopped with SIGSTOP for a while. Raises unless each
call ended once, with an answer or with an error: whole answers have as many tokens as were asked for and one end.
Prints how long the answers of the healthy upstream took, beside those of a quiet time before.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.load.upstream_servers import (
    LoadedFront,
    UpstreamServer,
    chat,
    corosrv_server,
    llama_server,
    load_front,
    machine_load,
    upstream_servers,
)

TURN = 5.0  # seconds from one fault to the next
STOPPED = 0.6  # the part of a turn for which an upstream is stopped
CONCURRENCY = 4  # of each upstream
N_CLIENTS = 6
N_TOKENS = 12
RECOVERY = 2.0  # seconds after a fault in which an upstream does what it could not do meanwhile
PATIENCE = 60.0  # seconds that any answer may take
SETTINGS = {"UPSTREAM_FIRST_BYTE": "10", "UPSTREAM_IDLE": "10", "LOG_LEVEL": "debug", "LOG_FORMAT": "json"}
ERRORS = {429, 502, 503, 504}  # with which a call may end while its upstream fails


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended. Times are of time.monotonic()."""

    name: str
    began: float
    ended: float
    status: int
    is_good: bool

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Tally:
    """All calls. Any thread."""

    calls: list[Ended] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def outcomes(self) -> Counter[str]:
        return Counter(
            f"{call.status} {'whole' if call.is_good else 'error'}" if call.status else "lost" for call in self.calls
        )


class Client(threading.Thread):
    """Makes one call after the other until it is told to end."""

    def __init__(self, port: int, tally: Tally, name: str, is_over: threading.Event) -> None:
        super().__init__(name=name)
        self._port = port
        self._tally = tally
        self._is_over = is_over
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                break
            try:
                self._call(f"{self.name}-{number}", is_stream=number % 2 == 0)
            except Exception as error:
                self._tally.wrong.append(f"{self.name}-{number}: {type(error).__name__}: {error}")
                self._connection.close()
        self._connection.close()

    def _call(self, name: str, is_stream: bool) -> None:
        fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
        began = time.monotonic()
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        self._connection.request("POST", "/v1/chat/completions", chat(f"Call {name}.", N_TOKENS, **fields), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        ended = time.monotonic()
        assert answer.headers["X-Request-Id"] == name, "it got the answer of another call"
        is_good = answer.status == 200 and (stream_is_good(body) if is_stream else answer_is_good(body))
        assert answer.status == 200 or answer.status in ERRORS, f"it was answered {answer.status}: {body[:200]!r}"
        self._tally.calls.append(Ended(name, began, ended, answer.status, is_good))
        if answer.will_close:
            self._connection.close()
        if answer.status != 200:
            self._is_over.wait(0.1)


def answer_is_good(body: bytes) -> bool:
    """Checks an answer that is no stream. Raises AssertionError."""
    value = json.loads(body)
    assert value["usage"]["completion_tokens"] == N_TOKENS, f"it has {value['usage']}"
    return True


def stream_is_good(body: bytes, n_tokens: int = N_TOKENS) -> bool:
    """Returns whether a stream is whole; False for one that ends with an error. Raises AssertionError for any other."""
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    assert events, "an empty stream"
    values = [json.loads(event) for event in events if event != b"[DONE]"]
    assert events.count(b"[DONE]") <= 1, "it ends twice"
    if "error" in values[-1]:
        return False
    assert events[-1] == b"[DONE]", f"it has no end: {events[-1][:200]!r}"
    reasons = [choice["finish_reason"] for value in values for choice in value["choices"] if choice["finish_reason"]]
    assert len(reasons) == 1, f"it was finished {len(reasons)} times"
    (usage,) = [value["usage"] for value in values if value.get("usage")]
    assert usage["completion_tokens"] == n_tokens, f"it has {usage}"
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """When an upstream failed, and was well again."""

    upstream: int
    kind: str
    began: float
    ended: float


def fail_in_turn(servers: Sequence[UpstreamServer], n_turns: int, seconds: float) -> list[Fault]:
    """Kills and stops the servers in turn, for some seconds each. Waits."""
    faults = []
    for turn in range(n_turns):
        began = time.monotonic()
        number = turn % len(servers)
        server = servers[number]
        kind = "killed" if turn // len(servers) % 2 == number % 2 else "stopped"
        if kind == "killed":
            server.kill()
            server.restart()
            server.wait()
        else:
            server.send(signal.SIGSTOP)
            time.sleep(STOPPED * seconds)
            server.send(signal.SIGCONT)
        faults.append(Fault(number, kind, began, time.monotonic() + RECOVERY))
        time.sleep(max(began + seconds - time.monotonic(), 0))
    return faults


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run: its calls, and the seconds of good answers in the quiet time and of the healthy part."""

    tally: Tally
    faults: list[Fault]
    quiet: list[float]
    healthy: list[float]


def run(
    servers: Sequence[UpstreamServer], front: LoadedFront, n_turns: int, quiet: float, turn: float = TURN
) -> Result:
    """Puts the load on the front. Raises AssertionError, which names the calls that went wrong."""
    tally, is_over = Tally(), threading.Event()
    port = front.server.address[1]
    clients = [Client(port, tally, f"client{number}", is_over) for number in range(N_CLIENTS)]
    for client in clients:
        client.start()
    try:
        time.sleep(quiet)
        faults_from = time.monotonic()
        faults = fail_in_turn(servers, n_turns, turn)
    finally:
        is_over.set()
        for client in clients:
            client.join(PATIENCE + 10)
    assert not tally.wrong, "\n".join(tally.wrong[:20])
    assert not any(client.is_alive() for client in clients), "a call was never answered"
    left = front.manage("GET", "/workers")["workers"]
    assert [worker["in_flight"] for worker in left] == [0] * len(servers), "calls are left"
    numbers = [servers_number(worker["url"], servers) for worker in left]
    answered = {
        call["id"]: numbers[[worker["id"] for worker in left].index(call["worker"])]
        for call in front.ended_calls()
        if call["outcome"] == "ok" and call["attempts"] == 1
    }
    quiet_times = [call.seconds for call in tally.calls if call.is_good and call.ended < faults_from]
    return Result(tally, faults, quiet_times, healthy_times(tally.calls, faults, answered, faults_from))


def servers_number(url: str, servers: Sequence[UpstreamServer]) -> int:
    return [server.url for server in servers].index(url)


def healthy_times(
    calls: Sequence[Ended], faults: Sequence[Fault], answered: Mapping[str, int], since: float
) -> list[float]:
    """Returns the seconds of good answers by upstreams that were well all the time.

    `answered`: which upstream gave an answer, of those that no other was tried for.
    """

    def is_healthy(call: Ended) -> bool:
        number = answered.get(call.name)
        return number is not None and not any(
            fault.upstream == number and call.began < fault.ended and call.ended > fault.began for fault in faults
        )

    return [call.seconds for call in calls if call.is_good and call.began >= since and is_healthy(call)]


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns a percentile in milliseconds."""
    return 1000 * sorted(values)[min(len(values) * percent // 100, len(values) - 1)] if values else float("nan")


def commands(program: str) -> list[list[str]]:
    """Returns the commands of two upstreams."""
    command = llama_server(program, CONCURRENCY) if program else corosrv_server(CONCURRENCY)
    return [command, command]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--quiet", type=float, default=15.0, help="seconds before the first fault")
    parser.add_argument("--llama-server", default="", help="the program; otherwise corosrv with its synthetic model")
    arguments = parser.parse_args()
    print(machine_load())
    with (
        upstream_servers(*commands(arguments.llama_server)) as servers,
        load_front(servers, CONCURRENCY, **SETTINGS) as front,
    ):
        result = run(servers, front, int(arguments.seconds / TURN), arguments.quiet)
        stats = front.manage("GET", "/workers")["workers"]
    kinds = Counter(fault.kind for fault in result.faults)
    print(f"{len(result.tally.calls)} calls, {dict(kinds)} upstreams; none lost without an error, none answered twice")
    for outcome, n in sorted(result.tally.outcomes().items()):
        print(f"  {outcome:12} {n}")
    for worker in stats:
        print(f"  {worker['url']}: {worker['ok']} well, {worker['failed']} failed, {worker['aborted']} aborted")
    for name, times in (("quiet", result.quiet), ("healthy part", result.healthy)):
        print(
            f"{name:13} {len(times):6} answers, p50 {percentile(times, 50):.0f} ms, p99 {percentile(times, 99):.0f} ms"
        )
    ratio = percentile(result.healthy, 99) / percentile(result.quiet, 99)
    print(f"p99 of the healthy part is {ratio:.2f} of the quiet one")
    print(machine_load())


if __name__ == "__main__":
    main()
