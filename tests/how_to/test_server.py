"""The recipes of the server: a setting, an error, a kind of worker."""

import pytest

from tests.how_to.recipes import Recipe

pytestmark = [pytest.mark.slow]

WORKER = '''"""Counts down: a worker whose reader yields numbers, and 0 last."""

from __future__ import annotations

from corosrv.contracts.jobs.reader import Reader, Sink, take_first
from corosrv.contracts.jobs import State


class Countdown(Reader[int]):
    """Yields the numbers below the one that a job is, and 0 last."""

    def __init__(self, start: int) -> None:
        self._left = list(range(start - 1, -1, -1))

    @property
    def is_finished(self) -> bool:
        return not self._left

    def take(self, timeout: float | None = None) -> list[int]:
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[int], timeout: float | None = None) -> None:
        items, self._left = self._left, []
        if items:
            sink(items)

    def cancel(self) -> None:
        self._left = self._left[-1:]

    def close(self) -> None:
        self._left = []


class CountdownWorker:
    """Runs any number of countdowns at once."""

    def __init__(self) -> None:
        self.state = State.STARTING

    def submit(self, job: int) -> Countdown:
        return Countdown(job)
'''
PART = '''"""The part of a server that counts down."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from corosrv.base.errors import CorosrvError, ShuttingDown, Starting
from corosrv.contracts.jobs import State
from corosrv.dialects.openai import events
from corosrv.serving.part import Part
from corosrv.web.http.reply import json_response
from corosrv.workers.countdown import CountdownWorker


class CountdownPart(Part):
    """Serves countdowns."""

    def __init__(self) -> None:
        self.worker = CountdownWorker()

    @property
    def state(self) -> State:
        return self.worker.state

    def check(self) -> None:
        if self.state is State.DRAINING:
            raise ShuttingDown("the server is stopping")
        if self.state is State.STARTING:
            raise Starting()

    def start(self) -> None:
        self.worker.state = State.READY

    def stop(self) -> None:
        self.worker.state = State.DRAINING

    def close(self) -> None:
        self.stop()

    def has_path(self, path: str) -> bool:
        return path.startswith("/countdown/")

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return events.body(error)

    def blueprints(self) -> tuple[Blueprint, ...]:
        routes = Blueprint("countdown", __name__)

        @routes.get("/countdown/<int:start>")
        def count(start: int) -> Response:
            self.check()
            with self.worker.submit(start) as reader:
                return json_response(list(reader))

        return (routes,)
'''


def test_a_setting_arrives_from_each_of_its_sources(tmp_path):
    recipe = Recipe("Add a setting", tmp_path)
    recipe.change(
        "corosrv/contracts/settings/server.py",
        (
            'class EndpointSettings:\n    """Settings of which endpoints a server has."""\n',
            'class EndpointSettings:\n    """Settings of which endpoints a server has."""\n\n'
            '    motto: str = setting("", "text of the header X-Motto", check=MOTTO)\n',
        ),
        (
            "@dataclass(frozen=True, kw_only=True)\nclass EndpointSettings:",
            'MOTTO = Check(str.isascii, "must be ASCII")\n\n\n'
            "@dataclass(frozen=True, kw_only=True)\nclass EndpointSettings:",
        ),
    )
    recipe.change(
        "corosrv/serving/server.py",
        (
            "        scaffold.after_request(self._hooks.complete)\n",
            "        scaffold.after_request(self._hooks.complete)\n"
            '        motto = {"X-Motto": self.settings.motto}\n'
            "        scaffold.after_request(lambda answer: answer.headers.update(motto) or answer)\n",
        ),
    )
    model = ("--model", "synthetic:", "--ctx", "512", "--slots", "2")
    (tmp_path / "corosrv.toml").write_text('motto = "of the file"\n')

    shown = recipe.run("-m", "corosrv", "config", *model, COROSRV_MOTTO="of the environment")
    with recipe.server(*model, "--motto", "of the option", COROSRV_MOTTO="of the environment") as client:
        _, _, headers = client.get("/health")
    with pytest.raises(AssertionError, match="COROSRV_MOTTO must be ASCII"):
        recipe.run("-m", "corosrv", "config", *model, COROSRV_MOTTO="größer")

    assert "COROSRV_MOTTO" in next(line for line in shown.splitlines() if line.split()[:1] == ["motto"])
    assert headers["x-motto"] == "of the option"


def test_an_error_is_drawn_and_has_its_form_in_every_dialect(tmp_path):
    recipe = Recipe("Add an error", tmp_path, "tests")
    recipe.change(
        "corosrv/base/errors/base.py",
        (
            "",
            'class TooLoud(Refused):\n    """The request shouts."""\n\n    status = 406\n\n'
            "    def __init__(self) -> None:\n"
            '        super().__init__("this server hears well: write in small letters", "text", "too_loud")\n',
        ),
    )
    recipe.change(
        "corosrv/base/errors/__init__.py",
        ("│   ├── NotSupported ", "│   ├── TooLoud              the request shouts\n│   ├── NotSupported "),
    )
    recipe.change(
        "tests/dialects/openai/test_errors.py",
        ('TABLE = [\n', 'TABLE = [\n    (errors.TooLoud(), 406, "invalid_request_error", "text", "too_loud"),\n'),
    )  # fmt: skip

    held = recipe.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/dialects/openai/test_errors.py", "tests/test_exports.py"
    )
    printed = recipe.program(
        "from corosrv.base.errors import TooLoud\nfrom corosrv.dialects.anthropic.answers import body\n"
        'print(body(TooLoud(), "r").error.type)'
    )

    assert " passed" in held
    assert printed.strip() == "invalid_request_error"


def test_a_worker_is_started_served_and_counted_in_the_health_of_its_server(tmp_path):
    recipe = Recipe("Add a kind of worker", tmp_path)
    (tmp_path / "corosrv/workers/countdown.py").write_text(WORKER)
    recipe.add("corosrv/serving/countdown.py", PART)
    recipe.change(
        "corosrv/serving/parts.py",
        (
            "    context.parts += [part for part in in_order if part is not None]\n",
            "    context.parts += [part for part in in_order if part is not None]\n"
            "    from corosrv.serving.countdown import CountdownPart\n\n"
            "    context.parts.append(CountdownPart())\n",
        ),
    )

    with recipe.server() as client:
        counted, misplaced = client.get("/countdown/4"), client.get("/countdown/four")

    assert counted[:2] == (200, [3, 2, 1, 0])
    assert (misplaced[0], misplaced[1]["error"]["type"]) == (404, "not_found_error")
