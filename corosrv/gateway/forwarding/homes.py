"""Remembers which upstream or peer has made a response of OpenAI's API, for those who ask for it later."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import gevent

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, InferItem, InferReader
from corosrv.contracts.jobs.reader import Sink
from corosrv.gateway.forwarding.grouped import ChangedReader

if TYPE_CHECKING:  # a server without Redis needs none of it
    from corosrv.fleet.cluster.connection import RedisClient
    from corosrv.fleet.cluster.namespace import KeyNames

log = logging.getLogger("corosrv.http")

MAX_HOMES = 10_000  # responses of one caller whose upstreams are remembered
_HOME_MS = 7 * 24 * 3_600_000  # for which Redis remembers those of a caller who makes no more
_RESPONSES = ("/v1/responses", "/responses")
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_LOOKED_AT = 4096  # bytes at the beginning of an answer, where its id stands

# KEYS: the makers of a caller's responses by their ids, and the ids in their order. ARGV: id, maker, how many are
# remembered, and for how many ms.
_NOTE = """
if redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) == 1 and redis.call('RPUSH', KEYS[2], ARGV[1]) > tonumber(ARGV[3]) then
  redis.call('HDEL', KEYS[1], redis.call('LPOP', KEYS[2]))
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
"""


def makes_responses(path: str) -> bool:
    """Tells whether the answers of a path are responses, which whoever makes them may keep."""
    return path.partition("?")[0] in _RESPONSES


class ResponseHomes:
    """Remembers who has made responses: which upstreams, or which peers. What a caller asked for, nobody else finds.

    Fronts with one Redis remember together, so that it does not matter which of them is asked, or has died.
    """

    def __init__(self, makers: str = "upstreams") -> None:
        # Ids of makers by callers, and by ids of responses.
        self._homes: defaultdict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)
        self._makers = makers
        self._client: RedisClient | None = None

    def share(self, client: RedisClient, names: KeyNames) -> None:
        """Remembers what other fronts have noted in Redis as well, from now on."""
        self._client, self._names, self._script = client, names, client.script(_NOTE)

    def note(self, caller: str, id: str, maker: str) -> None:
        """Remembers one, in place of the caller's earliest if there are too many. Never waits."""
        homes = self._homes[caller]
        homes[id] = maker
        if len(homes) > MAX_HOMES:
            homes.popitem(last=False)
        if self._client is not None:
            keys = [self._key("homes", caller), self._key("homes-order", caller)]
            gevent.spawn(self._ask, lambda: self._script.run(keys, [id, maker, MAX_HOMES, _HOME_MS]))

    def find(self, caller: str, id: str) -> str:
        """Returns who has made a response; an empty text where nobody is known. May wait for Redis."""
        homes = self._homes.get(caller)  # which makes none
        known = "" if homes is None else homes.get(id, "")
        client = self._client
        if known or client is None or not id.startswith("resp_"):
            return known
        found = self._ask(lambda: client.execute("HGET", self._key("homes", caller), id))
        return found.decode() if isinstance(found, bytes) else ""

    def forget(self, caller: str, id: str) -> None:
        """Forgets a response that was deleted. Never waits."""
        self._homes[caller].pop(id, None)
        if (client := self._client) is not None:
            gevent.spawn(self._ask, lambda: client.execute("HDEL", self._key("homes", caller), id))

    def _key(self, kind: str, caller: str) -> str:
        return self._names.name(kind, self._makers, caller)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Returns the reply of Redis; None while it is away. Waits."""
        try:
            return command()
        except CorosrvError as error:
            log.debug("who keeps a response is not shared: %s", error)
            return None


class NotingReader(ChangedReader):
    """Notes the id of a response and who makes it, as the answer goes by."""

    def __init__(
        self,
        reader: InferReader,
        note: Callable[[str, str], None],
        maker_of: Callable[[AnswerHead], str] = lambda head: head.upstream,
    ) -> None:
        super().__init__(reader)
        self._note = note  # takes the ids of a response and of its maker
        self._maker_of = maker_of
        self._maker = ""  # while the id is looked for
        self._beginning = b""

    def take(self, timeout: float | None = None) -> list[InferItem]:
        return self._look(self._reader.take(timeout))

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        self._reader.pump(lambda items: sink(self._look(items)), timeout)

    def on_news(self, listener: Callable[[], None]) -> bool:
        return self._reader.on_news(listener)

    def _look(self, items: list[InferItem]) -> list[InferItem]:
        for item in items:
            self._pass(item)
        return items

    def _pass(self, item: InferItem) -> list[InferItem]:
        if isinstance(item, AnswerHead):
            self._maker = self._maker_of(item) if item.status == HTTPStatus.OK else ""
        elif self._maker and isinstance(item, AnswerBody):
            self._beginning += item.data[:_LOOKED_AT]
            if (found := _RESPONSE_ID.search(self._beginning)) is not None:
                self._note(found[1].decode(), self._maker)
            if found is not None or len(self._beginning) >= _LOOKED_AT:
                self._maker, self._beginning = "", b""
        return [item]
