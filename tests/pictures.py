"""Makes the pictures of the README, in docs/pictures: the page, its live view, and a recording of a terminal.

`python -m tests.pictures` starts `corosrv serve` with the packaged model, on the port 8080 for the recording; Chromium
takes the screenshots. What a picture shows was said and measured by that server.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from tests.serve.server import BIN, REPOSITORY, Server, servers
from tests.support.browser import Page, browser
from tests.support.recording import Recording, Terminal
from tests.support.waiting import eventually

FOLDER = REPOSITORY / "docs" / "pictures"
SIZE = 1180, 760
ANSWER_S = 180.0
THREADS = "1"  # of the server: on a busy machine more wait for each other
COLOURS = 128  # of a screenshot, which has few
QUESTION = "Write a Python function that adds two numbers."
LIVE_S = 20.0  # for which streams run before the live view is taken
PROMPTS = ("the sea", "a clock", "a bridge", "snow", "a garden", "bread", "a lighthouse")
TOLD = "a story about {} that goes on for a long while"


def take(page: Page, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        page.screenshot(shot)
        picture = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / name, optimize=True)
    print(f"{name}: {(FOLDER / name).stat().st_size / 1000:.0f} kB")


def take_page(server: Server, page: Page) -> None:
    page.resize(*SIZE)
    page.open(f"http://127.0.0.1:{server.port}/")
    page.wait("!!document.querySelector('.ideas')")
    page.run("document.getElementById('message').focus()")
    page.type(QUESTION)
    page.press("Enter", 13)
    is_complete = "!!document.querySelector('.figures') && !document.querySelector('.is-running')"
    eventually(lambda: page.run(is_complete), ANSWER_S, "an answer")
    page.wait("!document.querySelector('pre') || !!document.querySelector('.hljs-keyword')")
    page.run("document.querySelector('.scroll').scrollTop = 0")
    take(page, "page.png")


def take_live(server: Server, page: Page) -> None:
    page.resize(*SIZE, is_dark=True)
    with streams(server):
        page.open(f"http://127.0.0.1:{server.port}/#/live")
        page.run("location.reload()")
        page.wait("!!document.querySelector('.live-say')")
        page.run(f"new Promise((resolve) => setTimeout(resolve, {LIVE_S * 1000}))")
        take(page, "live.png")


@contextmanager
def streams(server: Server) -> Iterator[None]:
    """Reads answers at once, one after the other on each connection, until the block ends."""
    is_over = threading.Event()

    def read(topic: str) -> None:
        n_tokens = 60 + 25 * PROMPTS.index(topic)  # so that they end one by one
        body = {"messages": [{"role": "user", "content": TOLD.format(topic)}], "max_tokens": n_tokens, "stream": True}
        asked = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/chat/completions", json.dumps(body).encode())
        while not is_over.is_set():
            with urllib.request.urlopen(asked, timeout=120) as answer:
                while not is_over.is_set() and answer.readline():
                    pass

    readers = [threading.Thread(target=read, args=(topic,)) for topic in PROMPTS]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        is_over.set()
        for reader in readers:
            reader.join(60)


def record() -> None:
    """Records `corosrv serve` above `corosrv chat`, as a person types them."""
    environ = {
        "PATH": os.pathsep.join((str(BIN), "/usr/bin:/bin")), "HOME": str(Path.home()), "PS1": "$ ",
        "TERM": "xterm", "LANG": "C.UTF-8", "COROSRV_THREADS": THREADS,
    }  # fmt: skip
    with Recording() as recording:
        above = recording.add(Terminal(["bash", "--norc", "-i"], environ, rows=27))
        below = recording.add(Terminal(["bash", "--norc", "-i"], environ, rows=9))
        recording.wait(above, "$ ")
        recording.type(above, "corosrv serve\r")
        recording.wait(above, "curl ", ": loaded")
        recording.pause(1.5)
        recording.type(below, "corosrv chat\r")
        recording.wait(below, ">>> ")
        recording.type(below, "Name three rivers.\r")
        recording.wait(below, "tokens", ">>> ")
        recording.pause(1.0)
        recording.type(below, "\x04")
        recording.wait(below, "$ ")
        recording.type(above, "\x03")
        recording.wait(above, "$ ")
        recording.pause(2.0)
    svg = recording.svg()
    assert str(REPOSITORY) not in svg, "a model that was loaded for the first time: record again"
    (FOLDER / "terminal.svg").write_text(svg)
    print(f"terminal.svg: {len(svg) / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("screens", "terminal"), help="make a part of them")
    only = parser.parse_args().only
    FOLDER.mkdir(exist_ok=True)
    if only != "terminal":
        with tempfile.TemporaryDirectory() as place, servers(Path(place), Path.home() / ".cache") as started:
            server = started.start(
                "corosrv", "serve", "--port", "0", slots=8, ctx=8192, n_predict=160, temp=0, threads=THREADS, model=""
            )
            with browser(Path(place) / "browser") as page:
                take_page(server, page)
                take_live(server, page)
    if only != "screens":
        record()


if __name__ == "__main__":
    main()
