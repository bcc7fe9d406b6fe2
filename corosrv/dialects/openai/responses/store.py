"""Responses that were answered, for as long as there is room: to be read again, and to go on from."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec

from corosrv.base.errors import NotFound
from corosrv.dialects.chat.turns import Turn
from corosrv.dialects.openai.responses.answer_types import ResponseObject
from corosrv.dialects.openai.responses.stored_images import StoredImages, put_images, take_images


def item_id(kind: str, key: str, number: int) -> str:
    """Returns the id of an item of the response whose own id is made of the same key."""
    return f"{kind}_{key}{number:04x}"


def response_of(item_id: str) -> str:
    """Returns the id of the response that an item belongs to."""
    return "resp_" + item_id.partition("_")[2][:-4]


class Stored(msgspec.Struct):
    """A response as it was answered, and the conversation up to and with it.

    Where images were in its turns, stored ones are when it is read: see read_images.
    """

    response: ResponseObject
    turns: tuple[Turn, ...]
    input: tuple[dict[str, Any], ...] = ()  # the items of the conversation before it


class ResponseStore:
    """The stored responses of all callers, each of whom has the same room: nobody's push out another's.

    Usable from any thread.
    """

    def __init__(self, max_bytes: int, n_callers: int = 1) -> None:
        """Divides `max_bytes` by the number of callers that there may be."""
        self._room = max_bytes // max(n_callers, 1)
        self._shelves: dict[str, Shelf] = {}
        self._lock = Lock()

    def shelf(self, owner: str) -> Shelf:
        """Returns what belongs to one caller."""
        with self._lock:
            return self._shelves.setdefault(owner, Shelf(self._room))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A stored response as JSON, and the hashes of the images of its conversation."""

    data: bytes
    images: tuple[str, ...]


_stored = msgspec.json.Decoder(Stored)


class Shelf:
    """One caller's stored responses, within `max_bytes`: the one that was not asked for longest goes first.

    Kept as bytes, so that their size is known and the garbage collector has nothing to walk. Usable from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0  # without images
        self._images = StoredImages()
        self._responses: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = Lock()

    @property
    def n_image_bytes(self) -> int:
        """The bytes of all images, each counted once."""
        return self._images.n_bytes

    def put(self, stored: Stored) -> None:
        """Stores a response, unless it is larger than all the room. Others make room for it."""
        turns, images = take_images(stored.turns)
        entry = _Entry(msgspec.json.encode(Stored(stored.response, turns, stored.input)), tuple(images))
        if len(entry.data) + sum(image.n_bytes for image in images.values()) > self._max_bytes:
            return
        with self._lock:
            if stored.response.id in self._responses:
                self._forget(stored.response.id)
            self._responses[stored.response.id] = entry
            self._n_bytes += len(entry.data)
            self._images.hold(images.values())
            while self._n_bytes + self._images.n_bytes > self._max_bytes:
                self._forget(next(iter(self._responses)))

    def _forget(self, id: str) -> None:
        entry = self._responses.pop(id)
        self._n_bytes -= len(entry.data)
        self._images.let_go(entry.images)

    def get(self, id: str, param: str | None = None) -> Stored:
        """Raises NotFound; `param` is where the id stood."""
        with self._lock:
            entry = self._responses.get(id)
            if entry is None:
                raise _not_found(id, param)
            self._responses.move_to_end(id)
            images = {sha256: self._images.get(sha256) for sha256 in entry.images}
        stored = _stored.decode(entry.data)
        if not images:
            return stored
        return Stored(stored.response, put_images(stored.turns, images.__getitem__), stored.input)

    def item(self, id: str, param: str) -> dict[str, Any]:
        """Returns an item of a stored response's output, whose id holds the response's. Raises NotFound."""
        try:
            output = self.get(response_of(id)).response.output
        except NotFound:
            output = []
        for item in output:
            if item.id == id:
                members: dict[str, Any] = msgspec.to_builtins(item)
                return members
        raise NotFound(f"no item '{id[:80]}' is stored here: send the item itself", param, "item_not_found")

    def drop(self, id: str) -> None:
        """Forgets a response. Raises NotFound."""
        with self._lock:
            if id not in self._responses:
                raise _not_found(id, None)
            self._forget(id)


def _not_found(id: str, param: str | None) -> NotFound:
    return NotFound(f"no response '{id[:80]}' is stored here", param, "response_not_found")
