"""Keeps a server among the upstreams of fronts for as long as it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from corosrv.base.errors import ManagementError
from corosrv.web.management.client import ManagementClient
from corosrv.web.management.remote import RemoteClient


class Membership:
    """Adds a server to fronts again and again, so that one which was started anew knows it. One thread's."""

    def __init__(
        self, fronts: Iterable[RemoteClient], body: Mapping[str, Any], say: Callable[[str], None] = print
    ) -> None:
        """`body`: of POST /workers. `say`: is told what has changed, and nothing twice in a row."""
        self._fronts = tuple(fronts)
        self._body = dict(body)
        self._say = say
        self._said: dict[str, str] = {}  # the last words about each front of the last round

    def renew(self) -> None:
        """Adds the server wherever it is not there yet. Waits for each front; one that fails is told, not raised."""
        self._tell_each(self._add)

    def leave(self) -> None:
        """Removes the server everywhere; what it runs for a front may end. Waits and tells as renew() does."""
        self._tell_each(self._remove)

    def _tell_each(self, call: Callable[[ManagementClient], str]) -> None:
        words: dict[str, str] = {}
        for front in self._fronts:
            try:
                clients = front.each_address()
            except OSError as error:
                words[front.path] = f"the name in it leads nowhere: {error}"
                continue
            for client in clients:
                words[client.path] = _outcome(call, client)
        for place, text in words.items():
            if self._said.get(place) != text:
                self._say(f"{place}: {text}")
        self._said = words

    def _add(self, client: ManagementClient) -> str:
        answer = client.call("POST", "/workers", self._body)
        return f"{answer['url']} is an upstream, {answer['id']}"

    def _remove(self, client: ManagementClient) -> str:
        answer = client.call("DELETE", f"/workers/{quote(self._body['url'], safe='')}?mode=drain")
        return f"{answer['url']} leaves"


def _outcome(call: Callable[[ManagementClient], str], client: ManagementClient) -> str:
    try:
        return call(client)
    except (ManagementError, OSError) as error:
        return f"no success: {error}"
