"""Talks to a model in the terminal: the command `corosrv chat`."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from corosrv.client.http import CHAT, ServerAddress, blocking_connection, event_data

URL = "http://127.0.0.1:8080"
PROMPT = ">>> "
_HELP = """/clear          forget the conversation
/system [TEXT]  say how the model is to answer, or show it; `/system -` takes it away
/model [NAME]   ask another model, or list them
/exit           end, as Ctrl-D does; Ctrl-C stops an answer"""
_TIMEOUT = 600.0  # seconds without a byte
_LOAD_S, _PAUSE_S = 600.0, 0.5  # that a model may take to load, and between two looks
_MAX_BODY = 4 << 20  # bytes of an answer that is no stream
_MAX_LINE = 4 << 20  # bytes of an event
_RECONNECTS = 5  # for one answer whose connection breaks
_NO_HEADERS: Mapping[str, str] = {}


class ChatFailed(click.ClickException):
    """A server cannot be reached, refuses a request, or breaks off; the words say which."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer, or of the thoughts before it; of the last one, the server's timings."""

    text: str = ""
    thoughts: str = ""
    timings: dict[str, Any] = field(default_factory=dict)


class ChatServer:
    """Asks a server in OpenAI's protocol, over one connection for each request. Blocks."""

    def __init__(self, url: str, key: str = "") -> None:
        """Raises Misuse for what is no URL."""
        self._address = ServerAddress(url)
        self._url = url
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def models(self) -> list[str]:
        with self._request("GET", "/v1/models") as answer:
            listed = _object(answer.read(_MAX_BODY)).get("data")
        names = [model.get("id") for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]

    def wait(self, tell: Callable[[str], None], seconds: float = _LOAD_S) -> None:
        """Waits until the server takes requests, and tells why not. Raises ChatFailed."""
        deadline, told_words = time.monotonic() + seconds, ""
        while words := self._why_not():
            if words != told_words:
                tell(words)
            told_words = words
            if time.monotonic() > deadline:
                raise ChatFailed(words)
            time.sleep(_PAUSE_S)

    def _why_not(self) -> str:
        """Returns why the server takes no requests yet; empty where it does, or does not tell."""
        try:
            with self._request("GET", "/health"):
                return ""
        except _Answered as error:
            if error.status == 503 and error.code != "model_failed":
                return str(error)
            if error.status == 503:
                raise
            return ""

    def answer(self, body: dict[str, Any]) -> Generator[Delta, None, None]:
        name = secrets.token_hex(16)
        text = json.dumps({**body, "stream": True}).encode()
        headers = {"Idempotency-Key": name, "X-Group-Id": name}
        n_broken = 0
        is_over = False
        try:
            while not is_over:
                try:
                    with self._request("POST", CHAT, text, headers) as answer:
                        for number, data in event_data(answer, _MAX_LINE):
                            if number:
                                headers["Last-Event-ID"] = number
                            if data.strip() != b"[DONE]":
                                yield _delta(_object(data))
                    is_over = True
                except ConnectionLost:
                    n_broken += 1
                    if "Last-Event-ID" not in headers or n_broken > _RECONNECTS:
                        raise
                    time.sleep(_PAUSE_S * n_broken)
        finally:
            if not is_over:  # it would run on, for whoever comes back
                with contextlib.suppress(ChatFailed), self._request("DELETE", f"/v1/groups/{name}"):
                    pass

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a request; the connection ends with the block. Raises ChatFailed, or ConnectionLost."""
        address = self._address
        connection = blocking_connection(address, _TIMEOUT)
        with contextlib.closing(connection):
            try:
                connection.request(method, address.prefix + path, body, {**self._headers, **headers})
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _Answered(answer.status, answer.read(_MAX_BODY))
                yield answer
            except (OSError, http.client.HTTPException) as error:
                words = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise ConnectionLost(f"no answer from {self._url}: {words}; `corosrv serve` starts a server") from None


class ConnectionLost(ChatFailed):
    """The server cannot be reached, or the connection broke in the middle of an answer."""


class _Answered(ChatFailed):
    """The server answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        told = None
        with contextlib.suppress(ChatFailed):
            told = _object(body).get("error")
        words = told.get("message") if isinstance(told, dict) else told
        super().__init__(printable(words) if isinstance(words, str) else f"the server answered with status {status}")
        self.status = status
        self.code = told.get("code") if isinstance(told, dict) else None


def _object(text: bytes) -> dict[str, Any]:
    """Decodes a JSON object. Raises ChatFailed."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ChatFailed("the server's answer is no JSON object: is there another program at this address?")
    return value


def _delta(event: dict[str, Any]) -> Delta:
    """Reads one event. Raises ChatFailed for one that tells of an error."""
    if isinstance(error := event.get("error"), dict):
        raise ChatFailed(printable(str(error.get("message", error))))
    choices, timings = event.get("choices"), event.get("timings")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    said = delta if isinstance(delta, dict) else {}
    return Delta(
        printable(str(said.get("content") or "")),
        printable(str(said.get("reasoning_content") or "")),
        timings if isinstance(timings, dict) else {},
    )


def printable(text: str) -> str:
    """Returns a text without what a terminal would obey: control characters but line breaks and tabs."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) != "Cc" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


class TerminalChat:
    """One conversation: reads lines, obeys those that begin with a slash, and prints the answers to all others."""

    def __init__(
        self,
        server: ChatServer,
        model: str,
        system: str = "",
        write: Callable[[str], None] = lambda text: click.echo(text, nl=False),
        *,
        is_styled: bool = False,
    ) -> None:
        """`is_styled`: thoughts are dim, and figures stand behind each answer."""
        self._server = server
        self._model = model
        self._system = system
        self._write = write
        self._is_styled = is_styled
        self._turns: list[dict[str, str]] = []

    def run(self, read: Callable[[], str]) -> None:
        """Holds the conversation until there are no more lines. `read` raises EOFError then."""
        while True:
            try:
                line = read().strip()
            except KeyboardInterrupt:  # a line that was begun
                self._write("\n")
                continue
            except EOFError:
                return
            if line in ("/exit", "/quit", "/bye"):
                return
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._obey(*line.partition(" ")[::2])
            else:
                self._ask(line)
        except ChatFailed as error:
            self._write(f"{self._dim('error:')} {error}\n")

    def _obey(self, command: str, text: str) -> None:
        text = text.strip()
        if command == "/clear":
            self._turns.clear()
        elif command == "/system":
            self._system = "" if text == "-" else text or self._system
            self._write(f"system: {self._system or 'nothing'}\n")
        elif command == "/model":
            self._choose(text)
        else:
            self._write(f"{_HELP}\n")

    def _choose(self, name: str) -> None:
        models = self._server.models()
        if name in models:
            self._model = name
        elif name:
            self._write(f"there is no model {name}\n")
        self._write("".join(f"{'*' if model == self._model else ' '} {printable(model)}\n" for model in models))

    def _ask(self, line: str) -> None:
        """Asks, and prints the answer while it comes. What was stopped by Ctrl-C stays as far as it went."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        turns = [*system, *self._turns, {"role": "user", "content": line}]
        pieces: list[str] = []
        end = Delta()
        try:
            with contextlib.closing(self._server.answer({"model": self._model, "messages": turns})) as answer:
                for delta in answer:
                    self._show(delta, is_first=not pieces)
                    pieces += [delta.text] if delta.text else []
                    end = delta if delta.timings else end
        except KeyboardInterrupt:
            self._write(self._dim(" (stopped)"))
        self._write("\n" + self._figures(end.timings))
        if pieces:
            self._turns += [turns[-1], {"role": "assistant", "content": "".join(pieces)}]

    def _show(self, delta: Delta, *, is_first: bool) -> None:
        if delta.thoughts:
            self._write(self._dim(delta.thoughts))
        if delta.text:
            self._write(delta.text.lstrip("\n") if is_first else delta.text)

    def _figures(self, timings: dict[str, Any]) -> str:
        rate, n_tokens = timings.get("predicted_per_second"), timings.get("predicted_n")
        if not self._is_styled or not isinstance(rate, (int, float)) or not isinstance(n_tokens, int):
            return ""
        return self._dim(f"{n_tokens} tokens, {rate:.1f} tokens/s") + "\n"

    def _dim(self, text: str) -> str:
        return click.style(text, dim=True) if self._is_styled else text


def read_line(*, is_terminal: bool) -> Callable[[], str]:
    """Returns what reads one line: on a terminal with a prompt, and with the lines before at the arrow keys."""
    if not is_terminal:
        return input
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() uses it once it is there
    return lambda: input(PROMPT)


@click.command("chat")
@click.option("--url", default=URL, show_default=True, help="where the server is")
@click.option("--model", "-m", help="its name; the first that the server lists")
@click.option("--system", "-s", default="", help="how the model is to answer")
@click.option("--api-key", envvar="COROSRV_API_KEY", default="", help="sent as a bearer key; also COROSRV_API_KEY")
def chat(url: str, model: str | None, system: str, api_key: str) -> None:
    """Talk to a model in the terminal. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D ends."""
    server = ChatServer(url, api_key)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    try:
        server.wait(lambda words: click.echo(f"corosrv: {words}", err=True))
        name = model or next(iter(server.models()), None)
    except KeyboardInterrupt:
        raise click.Abort from None
    if name is None:
        raise ChatFailed(f"{url} serves no model")
    if is_terminal:
        click.echo(f"{printable(name)} at {url}; /help for help, Ctrl-D ends")
    TerminalChat(server, name, system, is_styled=is_terminal).run(read_line(is_terminal=is_terminal))
    if is_terminal:
        click.echo()
