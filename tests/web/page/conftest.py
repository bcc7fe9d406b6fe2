"""A browser that shows the page of a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.browser import Page, browser
from tests.support.firefox import firefox as start_firefox
from tests.web.page.scripted import Scripted, serve


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def script() -> Iterator[Scripted]:
    with serve(Scripted()) as script:
        yield script


@pytest.fixture(scope="session")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with start_firefox(tmp_path_factory.mktemp("firefox")) as page:
        yield page


@pytest.fixture
def chat(script: Scripted, request: pytest.FixtureRequest) -> Iterator[Chat]:
    """The page with nothing kept yet; each test has an origin of its own, as its server has a port of its own.

    In Chromium, unless a test names another browser by an indirect parameter.
    """
    page: Page = request.getfixturevalue(getattr(request, "param", "chromium"))
    page.resize(1280, 860)
    page.open(script.url)
    chat = Chat(page)
    page.wait("!!document.querySelector('.ideas')")
    page.logged.clear()
    yield chat
    page.open("about:blank")


class Chat:
    """A person at the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.run = page.run
        self.wait = page.wait

    def say(self, words: str) -> None:
        self.run("document.getElementById('message').focus()")
        self.page.type(words)
        self.page.press("Enter", 13)

    def say_and_wait(self, words: str) -> None:
        n = self.count(".turn")
        self.say(words)
        self.wait(f"document.querySelectorAll('.turn').length > {n} && !document.querySelector('.is-running, .plain')")
        self.run("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 60)))")  # it is drawn

    def reload(self) -> None:
        self.run("window.isOld = true; location.reload()")
        self.wait("!window.isOld && !!document.getElementById('message')")

    def click(self, words: str, within: str = "document") -> None:
        """Clicks the last button with these words, or of this name, as soon as it can be clicked."""
        found = (
            f"[...{within}.querySelectorAll('button, summary')].filter((one) => one.checkVisibility() && "
            f"(one.textContent.trim() === {json.dumps(words)} || one.ariaLabel === {json.dumps(words)})).at(-1)"
        )
        self.wait(f"{found} && !{found}.disabled")
        self.run(f"{found}.click()")

    def count(self, selector: str) -> int:
        return int(self.run(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.textContent.trim() ?? ''"))

    def texts(self, selector: str) -> list[str]:
        return list(self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"))
