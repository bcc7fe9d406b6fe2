"""The page at `/` of running servers, in a real browser: mounted below a prefix behind a key, and of a predictor."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import SERVE, Server, Servers
from tests.serve.test_mount import EXAMPLE
from tests.support.browser import Page, browser

PREDICTOR = """
from corosrv import BasePredictor, Input

class Predictor(BasePredictor):
    def run(self, text: str = Input(description="What to turn round"), times: int = Input(default=2, le=9)) -> str:
        return text[::-1] * times
"""


@pytest.fixture(scope="module", params=[EXAMPLE, (*SERVE, "--api-prefix", "/llm")], ids=["mounted", "served"])
def server(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    server = kept.start(*request.param, model="synthetic:?tokens_per_s=200&length=60", api_keys="k", wait_for=None)
    server.wait_until("ok", prefix="/llm")
    return server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def test_a_person_with_a_key_chats_below_a_prefix(server: Server, chromium: Page) -> None:
    chromium.open(f"http://127.0.0.1:{server.port}/llm/")
    chromium.wait("!!document.querySelector('dialog[open] #key')")
    chromium.run("document.getElementById('key').focus()")
    chromium.type("k")
    chromium.run("document.querySelector('dialog form').requestSubmit()")
    chromium.wait("!!document.querySelector('.ideas')")
    chromium.logged.clear()  # of the 401
    chromium.run("document.getElementById('message').focus()")
    chromium.type("Tell me of the sea")
    chromium.press("Enter", 13)
    chromium.wait("document.querySelector('.figures')?.innerText.includes('prompt')")
    chromium.wait("document.querySelector('.answer .markdown').innerText.length > 100")

    assert re.search(r"\b6[01] tokens\b", chromium.run("document.querySelector('.figures').innerText"))
    assert chromium.logged == []


def test_a_predictor_is_run_by_a_form_of_its_schema(start_predictor: StartPredictor, chromium: Page) -> None:
    server = start_predictor(PREDICTOR)
    told = server.ask("GET", "/").json
    chromium.open(f"http://127.0.0.1:{server.process.port}/#/services")
    chromium.wait("!!document.querySelector('.service form')")
    chromium.run("document.querySelector('.service textarea').focus()")
    chromium.type("stressed")
    chromium.run("document.querySelector('.service form').requestSubmit()")
    chromium.wait("!!document.querySelector('.answer-text')")

    assert told["predictions_url"] == "/predictions"  # as Cog's server has it, for programs
    assert chromium.run("document.querySelector('.service input[type=number]').max") == "9"
    assert chromium.run("document.querySelector('.answer-text').innerText") == "dessertsdesserts"
