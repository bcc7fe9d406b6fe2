"""A replica that announces and answers as a test says: a real HTTP server in a thread, which stands for a peer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.scripted_upstream import Behaviour, Handler, ScriptedUpstream, echo


class PeerHandler(Handler):
    """One request of another replica."""

    def do_GET(self) -> None:
        peer: Any = self.server.upstream
        if self.path == "/v1/replica":
            peer.announcing(self)
        else:
            self.answer(404, {})


class ScriptedPeer(ScriptedUpstream):
    """Answers each request by its behaviour, and announces models of OpenAI's format."""

    def __init__(self, name: str, models: tuple[str, ...], announcing: Behaviour | None = None) -> None:
        super().__init__(echo, models)
        self.announcing = announcing or (lambda handler: handler.answer(200, self.announcement(name)))
        self._server.RequestHandlerClass = PeerHandler

    def announcement(self, name: str) -> dict[str, Any]:
        return {"replica": name, "formats": ["openai"], "models": list(self.models), "handlers": []}

    def headers(self, number: int = -1) -> dict[str, str]:
        """Returns the headers of one of the requests that it got, the last one without a number."""
        return self.requests[number][1]


@contextmanager
def scripted_peer(name: str, *models: str, announcing: Behaviour | None = None) -> Iterator[ScriptedPeer]:
    peer = ScriptedPeer(name, models, announcing)
    try:
        yield peer
    finally:
        peer.close()
