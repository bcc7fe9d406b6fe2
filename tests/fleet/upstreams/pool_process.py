"""A process that gevent has patched, with a pool of upstreams, driven by lines of JSON; and its owner in a test.

Probes come every 50 ms and the breaker's first pause is 0.3 s there, so that tests need not wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import gc
import os
import time

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, InferEnd, InferReader
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.upstreams import exchange, failures, forwarded_call
from corosrv.fleet.upstreams.aborter import AbortKind
from corosrv.fleet.upstreams.exchange import ExchangeLimits
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.fleet.upstreams.spec import UpstreamSpec
from tests.support.waiting import wait_until


class PoolProcess:
    """Runs the process. A method of Commands is called by its name; what it raises is raised here as RuntimeError."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.upstreams.pool_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, command: str, **options: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([command, options]) + "\n")
        stdin.flush()
        kind, value = json.loads(stdout.readline())
        if kind == "error":
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(20) == 0


class Call:
    """A forwarded call with what its reader has yielded."""

    def __init__(self, reader: InferReader) -> None:
        self.reader = reader
        self.status: int | None = None
        self.body = b""
        self.n_takes = 0  # that gave something
        self.ends: list[str] = []
        self.words = ""
        self.error: list[int | None] = []  # its status and Retry-After
        self.reading = None

    def read(self) -> None:
        while items := self.reader.take(30):
            self.n_takes += 1
            for item in items:
                if isinstance(item, AnswerHead):
                    assert self.status is None
                    self.status = item.status
                elif isinstance(item, AnswerBody):
                    self.body += item.data
                elif isinstance(item, InferEnd):
                    self.ends.append(type(item.error).__name__ if item.error else "ok")
                    self.words = str(item.error or "")
                    self.error = [item.error.status, item.error.retry_after] if item.error else []

    def told(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "body": self.body.decode(),
            "n_takes": self.n_takes,
            "ends": self.ends,
            "words": self.words,
            "error": self.error,
        }


class Commands:
    """What a test may ask for. Times are in seconds."""

    pool: UpstreamPool

    def __init__(self) -> None:
        failures.FIRST_PAUSE = 0.3
        forwarded_call.LINGER = 1.5  # as a busy machine is slow
        self.calls: dict[str, Call] = {}

    def new(
        self,
        first_byte: float = 10.0,
        idle: float = 10.0,
        complaints_for: float = 10.0,
        probes_each: float = 0.05,
        probes_soonest: float = 0.02,
        probe_limit: float = 2.0,
        **settings: Any,
    ) -> None:
        failures.COMPLAINT_DURATION = complaints_for
        failures.PROBE_INTERVAL = failures.FAST_PROBE_INTERVAL = probes_each
        failures.SHORTEST_PROBE_INTERVAL = probes_soonest
        exchange.TIME_LIMIT = probe_limit
        self.calls = {}
        self.pool = UpstreamPool(UpstreamPoolSettings(limits=ExchangeLimits(first_byte, idle), **settings))
        self.pool.start()

    def add(
        self, url: str, concurrency: int | None = 8, models: tuple[str, ...] = (), up: bool = True, abort: str = "auto"
    ) -> list[Any]:
        spec = UpstreamSpec(url=url, concurrency=concurrency, models=tuple(models), abort=AbortKind(abort))
        upstream, is_new = self.pool.add(spec)
        if up:
            self.await_state(upstream.id, "ready")
        return [upstream.id, is_new]

    def remove(self, id: str, abort: bool = False, timeout: float = 60.0) -> None:
        self.pool.remove(self.pool.find(id), abort=abort, timeout=timeout)

    def await_state(self, id: str, state: str) -> None:
        wait_until(
            lambda: state == next((u.state.value for u in self.pool.upstreams if u.id == id), "gone"),
            f"{id} is {state}",
        )

    def await_reason(self, words: str) -> None:
        """Waits until an upstream says with these words why it takes no calls."""
        wait_until(lambda: any(words in upstream.reason for upstream in self.pool.upstreams), words)

    def await_calls(self, waiting: int = 0, running: int = 0) -> None:
        def are_so() -> bool:
            n_running = sum(upstream.in_flight for upstream in self.pool.upstreams)
            return (self.pool.dispatcher.stats().n_waiting, n_running) == (waiting, running)

        wait_until(are_so, f"{waiting} calls wait and {running} run")

    def await_more_probes(self, n: int) -> None:
        """Waits until the only upstream was probed so many times more."""
        (upstream,) = self.pool.upstreams
        probes: list[str] = []
        note = upstream.probes.note

        def count(failure: str, *rest: Any) -> bool:
            probes.append(failure)
            return note(failure, *rest)

        upstream.probes.note = count  # type: ignore[method-assign]
        wait_until(lambda: len(probes) >= n, f"{n} more probes")

    def await_pool(self, state: str) -> None:
        wait_until(lambda: self.pool.state.value == state, f"the pool is {state}")

    def upstreams(self) -> list[dict[str, Any]]:
        return [
            {
                "id": u.id, "state": u.state.value, "reason": u.reason, "in_flight": u.in_flight, "models": u.models,
                "permits": [u.permits.total, u.permits.available], "ok": u.stats.ok, "aborted": u.stats.aborted,
                "failed": u.stats.failed, "tokens": u.stats.n_tokens, "room": [u.concurrency, u.concurrency_from],
            }
            for u in self.pool.upstreams
        ]  # fmt: skip

    def submit(
        self,
        names: list[str],
        model: str = "m",
        reads: bool = True,
        seconds: float | None = None,
        path: str = "/v1/x",
        headers: tuple[tuple[str, str], ...] = (),
        keeper: str = "",
    ) -> None:
        """Submits a call for each name, which is its body."""
        for name in names:
            deadline = None if seconds is None else time.monotonic() + seconds
            request = ForwardRequest(path=path, body=name.encode(), headers=tuple(map(tuple, headers)))
            self.calls[name] = Call(self.pool.submit(model, request, Terms(deadline=deadline), keeper))
            if reads:
                self.read(name)

    def read(self, name: str) -> None:
        call = self.calls[name]
        call.reading = gevent.spawn(call.read)

    def await_piece(self, name: str, n_bytes: int = 1) -> None:
        wait_until(lambda: len(self.calls[name].body) >= n_bytes, f"{n_bytes} bytes have come")

    def results(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """Waits for the ends of calls, of all if none is named."""
        calls = [self.calls[name] for name in names or self.calls]
        gevent.joinall([call.reading for call in calls], timeout=30)
        return [call.told() for call in calls]

    def await_idle_connection(self) -> None:
        (upstream,) = self.pool.upstreams
        wait_until(lambda: upstream.connections.n_idle == 1, "its connection is idle")

    def pass_time(self, seconds: float) -> None:
        """Returns when so much time has passed."""
        gevent.sleep(seconds)

    def cancel(self, name: str) -> None:
        self.calls[name].reader.close()

    def await_no_request(self) -> None:
        """Waits until nothing holds a request, not even garbage that nobody has collected."""
        self.calls = {}
        wait_until(
            lambda: not any(isinstance(thing, ForwardRequest) for thing in gc.get_objects()), "requests are let go of"
        )

    def collect_garbage(self, is_on: bool) -> None:
        gc.collect()
        (gc.enable if is_on else gc.disable)()

    def stop(self) -> None:
        self.pool.stop()

    def await_stop(self) -> None:
        wait_until(lambda: not self.pool.is_ending, "it has stopped")

    def close(self) -> None:
        self.pool.close()

    def leftovers(self) -> dict[str, int]:
        """Counts what runs or is open beside this loop; waits for what is about to end."""
        with gevent.Timeout(15, False):
            while any(_count_leftovers().values()):
                gevent.sleep(0.005)
        return _count_leftovers()


def _count_leftovers() -> dict[str, int]:
    gc.collect()
    own = gevent.getcurrent()
    greenlets = [g for g in gc.get_objects() if isinstance(g, gevent.Greenlet) and g is not own and not g.dead]
    sockets = [fd for fd in os.listdir("/proc/self/fd") if _is_socket(fd)]
    return {"greenlets": len(greenlets), "sockets": len(sockets)}


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


def serve() -> None:
    commands = Commands()
    read_line = gevent.get_hub().threadpool.apply
    while line := read_line(sys.stdin.readline):
        command, options = json.loads(line)
        try:
            answer = ["value", getattr(commands, command)(**options)]
        except (CorosrvError, AssertionError) as error:
            answer = ["error", f"{type(error).__name__}: {error}"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
