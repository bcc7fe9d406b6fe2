"""Servers with a predictor of tests/predictors, and how they are asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.serve.server import APP, REPOSITORY, START_SECONDS, WAIT_SECONDS, Process, Server
from tests.serve.wire import Answer, Connection, request
from tests.support.waiting import eventually

PREDICTORS = REPOSITORY / "tests" / "predictors"
PREDICTIONS = "/predictions"
STREAM = {"Accept": "text/event-stream"}
ASYNC = {"Prefer": "respond-async"}


class PredictorServer:
    """One server with one predictor. Whoever made it stops it."""

    def __init__(
        self,
        folder: Path,
        predictor: str | Path,
        wait_for: str = "READY",
        command: Sequence[str] = APP,
        prefix: str = "",
        **settings: Any,
    ) -> None:
        """`predictor`: of tests/predictors, or anywhere by its whole path. `corosrv serve` is told of it by an option,
        gunicorn by the environment, as both are of settings; variables of other names are given in capitals."""
        self.folder = folder
        self.prefix = prefix  # below which it answers
        chosen = {"predictor": PREDICTORS / predictor, **settings}
        if command[1] == "serve":
            command = (*command, "--predictor", str(chosen.pop("predictor")))
        environ = {name if name.isupper() else f"COROSRV_{name.upper()}": str(of) for name, of in chosen.items()}
        environ |= {"SICK": str(folder / "sick"), "TMPDIR": str(folder)}
        self.process = Server(command, environ, folder / "server.log")
        try:
            eventually(lambda: self.health()["status"] == wait_for, START_SECONDS, wait_for)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.process.stop()

    def connect(self, **options: Any) -> Connection:
        return Connection(self.process.port, **options)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        kind = {"Content-Type": "application/json"} if body is not None else {}
        with self.connect() as connection:
            return connection.ask(method, self.prefix + path, body, kind | (headers or {}))

    def predict(self, input: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        body = fields | ({} if input is None else {"input": input})
        return self.ask("POST", PREDICTIONS, body, headers)

    def put(self, id: str, input: Any = None, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        body = fields | ({} if input is None else {"input": input})
        return self.ask("PUT", f"{PREDICTIONS}/{id}", body, headers)

    def begin(self, input: Any, headers: dict[str, str] | None = None, **fields: Any) -> Connection:
        """Asks, and leaves the answer to be read."""
        kind = {"Content-Type": "application/json"}
        connection = self.connect()
        connection.send(request("POST", self.prefix + PREDICTIONS, fields | {"input": input}, kind | (headers or {})))
        return connection

    def get(self, id: str) -> Answer:
        return self.ask("GET", f"{PREDICTIONS}/{id}")

    def cancel(self, id: str) -> Answer:
        return self.ask("POST", f"{PREDICTIONS}/{id}/cancel")

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = self.ask("GET", "/health-check").json
        return health

    def wait_for(self, id: str, *statuses: str, within: float = WAIT_SECONDS) -> dict[str, Any]:
        """The prediction once it has one of these statuses."""

        def look() -> dict[str, Any] | None:
            shown: dict[str, Any] = self.get(id).json
            return shown if shown.get("status") in statuses else None

        shown = eventually(look, within, f"{id} is {' or '.join(statuses)}")
        assert shown is not None
        return shown

    def wait_for_end(self, id: str, within: float = WAIT_SECONDS) -> dict[str, Any]:
        """The prediction once it has ended."""
        return self.wait_for(id, "succeeded", "failed", "canceled", within=within)

    def wait_idle(self) -> None:
        eventually(lambda: self.health()["slots"]["busy"] == 0, what="all slots are free")

    @property
    def worker(self) -> Process:
        """The process that the predictor lives in."""
        (pid,) = self.process.worker.children()
        return Process(pid)

    def gate(self, name: str) -> Gate:
        return Gate(self.folder / f"gate-{name}")


class Gate:
    """A file that predictors wait for."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> None:
        self._path.touch()


@contextmanager
def serving_predictor(folder: Path, predictor: str | Path, **options: Any) -> Iterator[PredictorServer]:
    server = PredictorServer(folder, predictor, **options)
    try:
        yield server
    finally:
        server.stop()


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """Server-sent events as number, name and data; comments are left out. Checks the form."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b"", f"the stream ends in the middle of an event: {rest!r}"
    found = []
    for block in blocks:
        if block.startswith(b":"):
            continue
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
        assert set(fields) <= {b"id", b"event", b"data"}
        number = int(fields[b"id"]) if b"id" in fields else None
        found.append({"id": number, "event": fields[b"event"].decode(), "data": json.loads(fields[b"data"])})
    return found
