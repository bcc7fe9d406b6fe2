"""Running streams while images are encoded: `python -m tests.load.images [--llama-server PROGRAM]`.

Prints the time between two tokens of streams, 16 or as `--streams` says, without and with an image being encoded, in
turn, and the ratio of the 99th percentiles; and the time to the first token of an image that came before, against that
of texts. The projector is random and as slow as large ones are. llama-server gets the same files and requests.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image as Pillow

from corosrv.contracts.settings import model_list
from tests.load.clients import LoadClient, Stream, request
from tests.load.process import Server
from tests.load.upstream_servers import MODEL, UpstreamServer
from tests.support import projector

CONTEXT = 2048  # tokens of a slot; a stream that comes to its end is followed by another
IMAGE_SIDE = 64  # pixels; the projector enlarges it
WIDTH_OF_ROWS = 576  # of the packaged model
IMAGE_TIMEOUT = 300.0
GAP_TIMEOUT = 60.0  # seconds in which streams that run have a token
_FINISHED = f'corosrv_transfer_finished_total{{model="{MODEL}",result="success"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Says how many streams run, how slow the projector is, and how long the streams are watched."""

    n_streams: int = 16
    image_size: int = 896  # pixels; of the projector
    n_layers: int = 20
    seconds: float = 20.0  # of a window
    n_rounds: int = 3
    n_repeats: int = 40  # of an image that came before
    share: float | None = None  # of corosrv's encoder after each step, as a part of the step's time; None: its default


@dataclass(slots=True)
class Figures:
    """Measures of one server. Gaps are the seconds between two events of a stream, sorted, a list for each window."""

    name: str
    without: list[list[float]] = field(default_factory=list)  # one more than `during`: before and after each of them
    during: list[list[float]] = field(default_factory=list)
    alone: float = 0.0  # seconds of the first image, while nothing else ran
    answers: list[float] = field(default_factory=list)  # seconds of each image beside the streams
    # Seconds to the first token of what came before: an image, a text of as many tokens, and its words alone.
    repeats: list[float] = field(default_factory=list)
    texts: list[float] = field(default_factory=list)
    words: list[float] = field(default_factory=list)
    n_encoded: float = 0.0  # images, by the server's own count; 0 of one that keeps none

    def ratio(self, quantile: float) -> float:
        """Returns by how much the streams were slower: the median of all rounds, each against the windows around it.

        Raises ValueError where a window has no gaps: see GapClient.watch.
        """
        if not all((*self.without, *self.during)):
            raise ValueError("a window has no gaps to be compared")
        at = [[gaps[int(quantile * len(gaps))] for gaps in windows] for windows in (self.without, self.during)]
        around = [(before + after) / 2 for before, after in zip(at[0], at[0][1:], strict=False)]
        return statistics.median(during / plain for during, plain in zip(at[1], around, strict=True))

    @property
    def repeat_ratios(self) -> tuple[float, float]:
        """Returns how many times longer an image that came before takes than a text, and than its words alone."""
        image, text, words = map(statistics.median, (self.repeats, self.texts, self.words))
        return image / text, image / words


class GapClient(LoadClient):
    """Follows streams, and notes the time between the events of each. One that ended is followed by another."""

    def __init__(self, address: tuple[str, int], n_streams: int) -> None:
        super().__init__(address)
        self._last: dict[int, float] = {}
        self._gaps: list[float] = []
        self._n_streams = n_streams
        self._n_started = 0

    def fill(self) -> None:
        """Opens as many streams as are missing. Raises RuntimeError for one that did not come to its end."""
        if self.outcome.n_failed:
            raise RuntimeError(f"a stream ended early: {self.outcome.failures[0]}")
        while self.n_open < self._n_streams:
            self.open(text_stream(self._n_started % self._n_streams))
            self._n_started += 1

    def watch(self, seconds: float) -> list[float]:
        """Follows the streams for a while, and until there is a gap. Returns the gaps that ended meanwhile, sorted.

        Raises RuntimeError for a stream that fails, and where there is no gap within GAP_TIMEOUT.
        """
        self._gaps = []
        self.follow(seconds)
        give_up = time.monotonic() + GAP_TIMEOUT
        while not self._gaps:
            self.follow(0.2)
            if time.monotonic() > give_up:
                raise RuntimeError(f"{self.n_open} streams had no token in {seconds + GAP_TIMEOUT:.0f} s")
        return sorted(self._gaps)

    def follow(self, seconds: float) -> None:
        """Follows the streams for a while, each behind the one that ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.fill()
            self.run_for(min(left, 0.5))

    def _end(self, stream: Stream, failure: str | None) -> None:
        self._last.pop(id(stream), None)  # the next stream may have the number
        super()._end(stream, failure)

    def _read(self, stream: Stream) -> None:
        n_before = stream.n_events
        super()._read(stream)
        if stream.n_events == n_before:
            return
        now = time.monotonic()
        if (last := self._last.get(id(stream))) is not None:
            self._gaps.append(now - last)
        self._last[id(stream)] = now


class ImageSender(threading.Thread):
    """Sends new images, one after another, until it is told to stop."""

    def __init__(self, url: str, first: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._next = first
        self._is_stopping = threading.Event()
        self.answers: list[float] = []
        self.failure = ""
        self.start()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self.answers.append(ask(self._url, image_chat(self._next)))
            except OSError as error:
                self.failure = f"image {self._next} was not answered: {error}"
                return
            self._next += 1

    def stop(self) -> None:
        """Lets the image under way be the last one. Does not wait."""
        self._is_stopping.set()


QUESTION = "What is this?"


def image_chat(number: int) -> dict[str, object]:
    """A chat about a small picture, each of another colour."""
    picture = Pillow.new("RGB", (IMAGE_SIDE, IMAGE_SIDE), (number % 256, number // 256, 77))
    file = io.BytesIO()
    picture.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    words = {"type": "text", "text": QUESTION}
    return _chat([words, {"type": "image_url", "image_url": {"url": url}}])


def _chat(content: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def ask(url: str, body: dict[str, object]) -> float:
    """Returns the seconds until the answer, which has one token. Waits for it; raises OSError."""
    began = time.monotonic()
    _post(url, body)
    return time.monotonic() - began


def n_tokens(url: str, body: dict[str, object]) -> int:
    """Returns how many tokens a server counts in a prompt. Waits for its answer; raises OSError."""
    return int(json.loads(_post(url, body))["usage"]["prompt_tokens"])


def _post(url: str, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    sent = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=IMAGE_TIMEOUT) as answer:
        return bytes(answer.read())


def text_stream(number: int) -> bytes:
    """A request for a text as long as the context."""
    body = {"model": MODEL, "prompt": f"Story {number} begins", "stream": True, "ignore_eos": True, "temperature": 0}
    return request("/v1/completions", json.dumps(body | {"max_tokens": CONTEXT - 64}).encode())


def corosrv_command(mmproj: Path, load: Load) -> list[str]:
    variables = [] if load.share is None else [f"COROSRV_ENCODER_SHARE={load.share}"]
    return [
        "env", *variables, sys.executable, "-m", "corosrv", "serve", "--port", "{port}",
        "--model", f"{MODEL}={model_list.packaged_model()}", "--mmproj", str(mmproj),
        "--slots", str(load.n_streams + 1), "--ctx", str(CONTEXT),
    ]  # fmt: skip


def llama_server_command(program: str, mmproj: Path, load: Load) -> list[str]:
    slots, threads = load.n_streams + 1, len(os.sched_getaffinity(0))
    return [
        program, "-m", model_list.packaged_model(), "--alias", MODEL, "--mmproj", str(mmproj), "--host", "127.0.0.1",
        "--port", "{port}", "-t", str(threads), "-np", str(slots), "-c", str(slots * CONTEXT), "--no-kv-unified",
    ]  # fmt: skip


@contextlib.contextmanager
def slow_projector(load: Load) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield projector.write_internvl(Path(folder) / "mmproj.gguf", WIDTH_OF_ROWS, load.image_size, load.n_layers)


def measure(name: str, command: Sequence[str], load: Load) -> Figures:
    """Starts a server, and looks at its streams with and without images, and at an image that comes again."""
    figures = Figures(name)
    with contextlib.closing(UpstreamServer(command)) as server:
        server.wait()
        figures.alone = ask(server.url, image_chat(0))
        repeat(server.url, load, figures)
        client = GapClient(("127.0.0.1", server.port), load.n_streams)
        client.fill()
        while client.n_waiting:
            client.follow(0.5)
        figures.without.append(client.watch(load.seconds))
        for round_number in range(load.n_rounds):
            figures.during.append(watch_images(server.url, client, load, figures, 100 * (round_number + 1)))
            figures.without.append(client.watch(load.seconds))
        for stream in client.streams():
            client.drop(stream)
        figures.n_encoded = n_encoded(server)
    return figures


def repeat(url: str, load: Load, figures: Figures) -> None:
    """Asks about the first image again and again, in turn with texts that are asked again."""
    image, words = image_chat(0), _chat(QUESTION)
    text = _chat(QUESTION + " red" * (n_tokens(url, image) - n_tokens(url, words)))
    ask(url, text)
    for _ in range(load.n_repeats):
        figures.words.append(ask(url, words))
        figures.texts.append(ask(url, text))
        figures.repeats.append(ask(url, image))


def watch_images(url: str, client: GapClient, load: Load, figures: Figures, first: int) -> list[float]:
    """Returns the gaps while images are encoded. Waits until the last one was answered, which is not counted.

    Raises RuntimeError for an image that failed.
    """
    sender = ImageSender(url, first)
    gaps = client.watch(load.seconds)
    sender.stop()
    while sender.is_alive():
        client.follow(0.2)
    if sender.failure:
        raise RuntimeError(sender.failure)
    figures.answers += sender.answers
    return gaps


def n_encoded(server: UpstreamServer) -> float:
    """Returns how many images a corosrv has encoded; 0 for another server."""
    try:
        return Server(("127.0.0.1", server.port), 0).metric(_FINISHED)
    except (KeyError, OSError):
        return 0.0


def show(figures: Figures) -> None:
    def at(windows: list[list[float]], quantile: float) -> str:
        gaps = sorted(gap for window in windows for gap in window)
        return f"{1000 * gaps[int(quantile * len(gaps))]:.0f}"

    rows = {
        "an image alone (s)": f"{figures.alone:.2f}",
        "images beside the streams (s)": " ".join(f"{seconds:.1f}" for seconds in figures.answers),
        "between two tokens, p50 / p99 (ms)": f"{at(figures.without, 0.5)} / {at(figures.without, 0.99)}",
        "while an image is encoded (ms)": f"{at(figures.during, 0.5)} / {at(figures.during, 0.99)}",
        "ratio of p50 / p99, median of the rounds": f"{figures.ratio(0.5):.2f} / {figures.ratio(0.99):.2f}",
        "again, until the first token (ms): an image": f"{1000 * statistics.median(figures.repeats):.1f}",
        "a text of as many tokens, and the ratio": f"{1000 * statistics.median(figures.texts):.1f}, "
        f"{figures.repeat_ratios[0]:.2f}",
        "its words alone, and the ratio": f"{1000 * statistics.median(figures.words):.1f}, "
        f"{figures.repeat_ratios[1]:.2f}",
    }
    print(figures.name)
    for name, value in rows.items():
        print(f"  {name:42} {value}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", default="", help="the program, to be measured as well")
    parser.add_argument("--layers", type=int, default=Load().n_layers, help="of the projector: more are slower")
    parser.add_argument("--seconds", type=float, default=Load().seconds, help="of a window")
    parser.add_argument("--streams", type=int, nargs="+", default=[Load().n_streams], help="each number in turn")
    parser.add_argument("--rounds", type=int, default=Load().n_rounds)
    parser.add_argument(
        "--share", type=float, nargs="+", default=[None],
        help="of corosrv's encoder after each step, as a part of the step's time; each in turn; its own by default",
    )  # fmt: skip
    arguments = parser.parse_args()
    plain = Load(n_layers=arguments.layers, seconds=arguments.seconds, n_rounds=arguments.rounds)
    with slow_projector(plain) as mmproj:
        for n_streams, share in itertools.product(arguments.streams, arguments.share):
            load = replace(plain, n_streams=n_streams, share=share)
            name = f"corosrv, {n_streams} streams" + ("" if share is None else f", encoder share {share:g}")
            show(measure(name, corosrv_command(mmproj, load), load))
            if arguments.llama_server and share == arguments.share[-1]:
                command = llama_server_command(arguments.llama_server, mmproj, load)
                show(measure(f"llama-server, {n_streams} streams", command, load))


if __name__ == "__main__":
    main()
