"""The page that shows the API, in a real browser, mounted below a prefix and behind a key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.serve.server import Server, Servers
from tests.serve.test_mount import EXAMPLE
from tests.support.browser import Page, browser

N_SHOWN = "document.querySelectorAll('.operation:not([hidden])').length"


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    server = kept.start(*EXAMPLE, model="synthetic:?tokens_per_s=0&length=12", api_keys="k", wait_for=None)
    server.wait_until("ok", prefix="/llm")
    return server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(server: Server, chromium: Page) -> Iterator[Page]:
    """The page with its key entered, showing everything."""
    page = chromium
    page.open(f"http://127.0.0.1:{server.port}/llm/docs")
    page.wait("document.querySelector('.note')?.textContent.includes('asks for a key')")
    page.run("key.value = 'k'; key.dispatchEvent(new Event('change'))")
    page.wait(f"{N_SHOWN} > 5")
    page.logged.clear()  # of the 401
    yield page
    page.run("sessionStorage.clear()")
    page.open("about:blank")


def type_into(page: Page, field: str, text: str) -> None:
    page.run(f"{field}.value = {json.dumps(text)}; {field}.dispatchEvent(new Event('input'))")


def test_a_search_leaves_what_has_all_its_words(page: Page) -> None:
    n_all = page.run(N_SHOWN)
    type_into(page, "search", "chat MIROSTAT")

    assert 1 <= page.run(N_SHOWN) < n_all
    assert page.run("document.querySelector('.hit code').textContent") == "mirostat"
    type_into(page, "search", "no such words")
    assert page.run("[...document.querySelectorAll('.note')].some((note) => note.checkVisibility())")


def test_a_request_is_tried_and_its_stream_shown(page: Page) -> None:
    card = "document.getElementById('post_v1_chat_completions')"
    page.run(f"{card}.querySelectorAll('.chip')[1].click()")
    page.run(f"{card}.querySelector('form').requestSubmit()")
    page.wait(f"{card}.querySelector('.raw')?.textContent.includes('[DONE]')")

    assert page.run(f"{card}.querySelector('.figures .status').textContent") == "200"
    assert len(page.run(f"{card}.querySelector('.text').textContent")) > 20
    assert page.wait(f"{card}.querySelector('.figures').textContent.includes('events')")


def test_a_refusal_is_shown_as_it_came(page: Page) -> None:
    card = "document.getElementById('post_v1_completions')"
    type_into(page, f"{card}.querySelector('textarea')", '{"prompt": 5}')
    page.run(f"{card}.querySelector('form').requestSubmit()")
    page.wait(f"{card}.querySelector('.raw')?.textContent.includes('prompt')")

    assert page.run(f"{card}.querySelector('.figures .status').textContent") == "400"


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    page.resize(width, 800)
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")

    assert page.run("document.documentElement.scrollWidth") <= width


def test_the_browser_has_nothing_to_complain_of(page: Page) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")

    assert page.logged == []
