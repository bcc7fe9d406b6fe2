"""The live picture in Chromium: what it says of frames, to eyes and to screen readers, and how it connects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Page, browser
from tests.support.waiting import eventually
from tests.web.live.frames import HOSTILE, engine, frame
from tests.web.live.harness import Harness, harness


@pytest.fixture
def server() -> Iterator[Harness]:
    with harness() as server:
        server.frame = frame()
        yield server


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        page.resize(1280, 900)
        yield page


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({selector!r})?.innerText ?? ''"))


def says(page: Page, words: str) -> bool:
    return words in text(page, ".live-say")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "3 answers are written at once: 88 tokens a second."),
        ({"engines": [engine(running=4, waiting=6)]}, "6 requests wait: all 4 slots are taken."),
        ({"engines": [engine(paused=1)]}, "1 answer is paused."),
        ({"engines": [engine(running=0, slots=[{"state": "idle"}] * 4, recent=None)]}, "Nothing runs, nothing waits."),
        ({"hub": {"lag": 0.3, "collections": 0, "collection_s": 0, "longest_collection": 0}}, "300 ms for the hub"),
        ({"models": [{"id": "m", "state": "downloading", "progress": {"bytes": 1, "total": 4}}]}, "downloading, 25 %"),
        ({"upstreams": [{"id": "u1", "state": "open", "in_flight": 0, "concurrency": 4, "ok": 1, "failed": 9}]},
         "1 upstream takes no calls."),
        ({"queues": [{"of": "handlers", "key": "add", "state": "READY", "depth": 3, "max_depth": 9, "in_flight": 1,
                      "permits": 1, "classes": {"5": 3}, "oldest": 1.5}]}, "3 calls wait for a free place, the first"),
    ],
)  # fmt: skip
def test_a_sentence_says_what_is_fast_and_what_is_slow(
    server: Harness, page: Page, members: dict[str, Any], words: str
):
    server.frame = frame(**members)
    page.open(server.url)

    eventually(lambda: says(page, words), what=f"{words}; {text(page, '.live-say')}")


def test_all_that_is_drawn_can_be_read_as_tables(server: Harness, page: Page):
    page.open(server.url)
    page.wait("document.querySelector('.live canvas[aria-label]') !== null")
    page.run("document.querySelector('.live details').open = true")
    page.wait("document.querySelectorAll('.live details table').length == 2")

    cells = page.run(
        "[...document.querySelectorAll('.live details table:last-child tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )

    assert cells[0] == ["0", "writes", "7", "40 of 40, 10 from the cache", "12"]
    assert [row[1] for row in cells[1:]] == ["reads its prompt", "paused: its client reads too slowly", "idle"]
    assert "1 idle, 1 reading, 1 decoding, 1 paused" in page.run(
        "document.querySelector('.live canvas[aria-label]').getAttribute('aria-label')"
    )


def test_names_are_shown_as_they_are_and_run_nothing(server: Harness, page: Page):
    server.frame = frame(models=[{"id": HOSTILE, "state": "failed"}] * 2)
    page.open(server.url)
    page.wait("document.querySelector('.live-lists table') !== null")

    assert page.run("document.title") == "live"
    assert page.run("document.querySelectorAll('.live img, .live script').length") == 0
    assert page.logged == []  # nothing that the policy refuses, and no error


def test_lanes_are_drawn_in_the_colours_of_the_states(server: Harness, page: Page):
    page.open(server.url)
    page.wait("document.querySelector('.live-tile dd span').textContent == '88'")

    def painted(lane: int) -> int:
        """Counts the colours of a lane."""
        return int(
            page.run(
                "(() => { const canvas = document.querySelector('.live canvas[role=img]');"
                f"const {{ data }} = canvas.getContext('2d').getImageData(60, {lane * 22}, canvas.width - 60, 17);"
                "return new Set(new Uint32Array(data.buffer)).size; })()"
            )
        )

    eventually(lambda: painted(0) > 1 and painted(1) > painted(3) and painted(2) > painted(3), what="lanes")


def test_a_stream_that_ends_is_opened_again(server: Harness, page: Page):
    page.open(server.url)
    eventually(lambda: server.n_streams == 1)
    server.hangs_up.set()
    page.wait("document.querySelector('.live-note').textContent.includes('connecting again')")
    server.hangs_up.clear()

    eventually(lambda: server.n_open == 1 and server.n_streams >= 2)
    page.wait("document.querySelector('.live-note').hidden")


def test_why_the_server_refuses_is_said(server: Harness, page: Page):
    page.open(f"{server.url}#wrong")

    page.wait("document.querySelector('.live-note')?.textContent == 'a key is needed'")


def test_the_end_takes_all_away_and_watches_no_more(server: Harness, page: Page):
    page.open(server.url)
    page.wait("document.querySelector('.live-say b') !== null")
    page.run("window.end()")

    eventually(lambda: server.n_open == 0)
    assert page.run("document.querySelector('#picture').children.length + document.adoptedStyleSheets.length") == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(server: Harness, page: Page, width: int):
    page.resize(width, 900, is_dark=True)
    page.open(server.url)
    page.wait("document.querySelector('.live-say b') !== null")

    assert page.run("document.documentElement.scrollWidth <= innerWidth")
