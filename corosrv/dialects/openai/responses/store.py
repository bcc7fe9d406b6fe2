"""Responses that were answered, and conversations, for as long as there is room: to be read again, and to go on from.

Each caller has the same room, for both together.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace as replace_member

from corosrv.base.errors import NotFound, Refused
from corosrv.base.processor import Turns
from corosrv.dialects.chat.conversation import Turn
from corosrv.dialects.openai.responses.answer_types import ResponseObject
from corosrv.dialects.openai.responses.stored_images import StoredImages, put_images, take_images
from corosrv.formats import bodies

log = logging.getLogger("corosrv")

Item = dict[str, Any]


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
    input: tuple[Item, ...] = ()  # the items of the conversation before it


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


def output_items(response: ResponseObject) -> Iterator[Item]:
    """Makes the items of a response's output, as they are listed: without what only the response itself shows."""
    for item in response.output:
        parts = item.content
        if parts:
            parts = [part if part.logprobs is UNSET else replace_member(part, logprobs=[]) for part in parts]
        yield msgspec.to_builtins(replace_member(item, content=parts))


CONVERSATION_COST = 1024  # bytes that a conversation takes besides its items, about
ITEM_COST = 256  # bytes that an item of a conversation takes besides its text, about
MAX_CONVERSATION_ITEMS = 8192
_FEW_BYTES = "bytes here (see COROSRV_RESPONSE_STORE_BYTES)"
MAX_CONVERSATION_BYTES = 16 << 20  # decoding as many takes some 50 ms


@dataclass(frozen=True, slots=True)
class _StoredResponse:
    """A stored response as JSON, and the hashes of the images of its conversation."""

    data: bytes
    images: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        return len(self.data)


@dataclass(slots=True)
class StoredConversation:
    """A conversation, to which items are added: each as JSON, by its id."""

    images: ClassVar[tuple[str, ...]] = ()  # they are in its items, as their clients sent them
    id: str
    created_at: int
    metadata: dict[str, str]
    items: dict[str, bytes] = field(default_factory=dict)
    n_bytes: int = CONVERSATION_COST
    n_values: int = 0

    def add(self, item: Item, data: bytes) -> Item:
        """Adds an item, with its JSON, and returns it; one whose id another item has gets a new one."""
        if item["id"] in self.items:
            item = {**item, "id": f"{item['id'].partition('_')[0]}_{secrets.token_hex(24)}"}
            data = msgspec.json.encode(item)
        self.items[item["id"]] = data
        self.count((data,))
        return item

    def count(self, more: Iterable[bytes] = (), less: Iterable[bytes] = ()) -> None:
        """Counts the bytes of items, and the values that it takes time to decode: about, and rather too many."""
        for sign, items in ((1, more), (-1, less)):
            for data in items:
                self.n_bytes += sign * (len(data) + ITEM_COST)
                self.n_values += sign * (data.count(b",") + data.count(b'"') // 2)


_stored = msgspec.json.Decoder(Stored)
Entry = TypeVar("Entry", _StoredResponse, StoredConversation)


class Shelf:
    """One caller's stored responses and conversations, within `max_bytes`: the one not asked for longest goes first.

    Responses are kept as bytes, and so are items, so that their size is known and the garbage collector has nothing to
    walk. Usable from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0  # without images
        self._images = StoredImages()
        self._entries: OrderedDict[str, _StoredResponse | StoredConversation] = OrderedDict()
        self._lock = Lock()

    @property
    def n_image_bytes(self) -> int:
        """The bytes of all images, each counted once."""
        return self._images.n_bytes

    def put(self, stored: Stored) -> None:
        """Stores a response, unless it is larger than all the room. Others make room for it."""
        turns, images = take_images(stored.turns)
        entry = _StoredResponse(msgspec.json.encode(Stored(stored.response, turns, stored.input)), tuple(images))
        if len(entry.data) + sum(image.n_bytes for image in images.values()) > self._max_bytes:
            return
        with self._lock:
            if stored.response.id in self._entries:
                self._forget(stored.response.id)
            self._entries[stored.response.id] = entry
            self._n_bytes += len(entry.data)
            self._images.hold(images.values())
            self._make_room()

    def _make_room(self) -> None:
        while self._n_bytes + self._images.n_bytes > self._max_bytes:
            self._forget(next(iter(self._entries)))

    def _forget(self, id: str) -> None:
        entry = self._entries.pop(id)
        self._n_bytes -= entry.n_bytes
        self._images.let_go(entry.images)

    def _find(self, id: str, kind: type[Entry], param: str | None) -> Entry:
        """Returns an entry, which is the one asked for last from now on. Raises NotFound."""
        entry = self._entries.get(id)
        if not isinstance(entry, kind):
            raise _not_found("response" if kind is _StoredResponse else "conversation", id, param)
        self._entries.move_to_end(id)
        return entry

    def get(self, id: str, param: str | None = None) -> Stored:
        """Raises NotFound; `param` is where the id stood."""
        with self._lock:
            entry = self._find(id, _StoredResponse, param)
            images = {sha256: self._images.get(sha256) for sha256 in entry.images}
        stored = _stored.decode(entry.data)
        if not images:
            return stored
        return Stored(stored.response, put_images(stored.turns, images.__getitem__), stored.input)

    def item(self, id: str, param: str) -> Item:
        """Returns an item of a stored response's output, whose id holds the response's. Raises NotFound."""
        try:
            output = output_items(self.get(response_of(id)).response)
        except NotFound:
            output = iter(())
        for item in output:
            if item["id"] == id:
                return item
        raise NotFound(f"no item '{id[:80]}' is stored here: send the item itself", param, "item_not_found")

    def drop(self, id: str) -> None:
        """Forgets a response. Raises NotFound."""
        with self._lock:
            self._find(id, _StoredResponse, None)
            self._forget(id)

    def begin(self, metadata: dict[str, str], items: Sequence[Item]) -> StoredConversation:
        """Stores a new conversation with these items. May wait. Raises Refused if there is no room for it."""
        conversation = StoredConversation(f"conv_{secrets.token_hex(24)}", int(time.time()), {})
        data = _encode(items)
        with self._lock:
            self._check_room(conversation, data, "items")
            self._entries[conversation.id] = conversation
            self._n_bytes += conversation.n_bytes
            self._add(conversation, items, data)
            self._set_metadata(conversation, metadata)
            return _copy(conversation)

    def conversation(self, id: str, param: str | None = None) -> StoredConversation:
        """Returns a conversation as it is now. Raises NotFound; `param` is where the id stood."""
        with self._lock:
            return _copy(self._find(id, StoredConversation, param))

    def label(self, id: str, metadata: dict[str, str]) -> StoredConversation:
        """Replaces the metadata of a conversation, and returns it. Raises NotFound."""
        with self._lock:
            conversation = self._find(id, StoredConversation, None)
            self._set_metadata(conversation, metadata)
            return _copy(conversation)

    def _set_metadata(self, conversation: StoredConversation, metadata: dict[str, str]) -> None:
        # Not checked against the room: it is bounded, and small.
        grown = len(msgspec.json.encode(metadata)) - len(msgspec.json.encode(conversation.metadata))
        conversation.metadata = metadata
        conversation.n_bytes += grown
        self._n_bytes += grown
        self._make_room()

    def check_room(self, id: str, items: Sequence[Item], param: str) -> None:
        """Raises Refused if a conversation has no room for more items, and NotFound. May wait."""
        data = _encode(items)
        with self._lock:
            self._check_room(self._find(id, StoredConversation, param), data, param)

    def _check_room(self, conversation: StoredConversation, data: Sequence[bytes], param: str) -> None:
        grown = _with(conversation, data)
        most = min(self._max_bytes // 2, MAX_CONVERSATION_BYTES)  # so that answers fit in as well
        for n, limit, words in (
            (len(conversation.items) + len(data), MAX_CONVERSATION_ITEMS, "items"),
            (grown.n_values, bodies.LIMITS.values, "values, as a body"),
            (grown.n_bytes, most, "bytes" if most == MAX_CONVERSATION_BYTES else _FEW_BYTES),
        ):
            if n > limit:
                words = f"{param}: a conversation has at most {limit} {words}, and would have {n}"
                raise Refused(words, param, "conversation_too_large")

    def extend(self, id: str, items: Sequence[Item]) -> list[Item]:
        """Adds items to a conversation, and returns them as they are kept. May wait.

        Raises NotFound, and Refused if there is no room for them.
        """
        data = _encode(items)
        with self._lock:
            conversation = self._find(id, StoredConversation, None)
            self._check_room(conversation, data, "items")
            return self._add(conversation, items, data)

    def add_turn(self, id: str, items: Sequence[Item]) -> None:
        """Adds a response's items to its conversation, in a row, unless that was deleted meanwhile.

        An answer that takes more than all the room is left out: the conversation stays as it was. May wait.
        """
        data = _encode(items)
        with self._lock:
            conversation = self._entries.get(id)
            if not isinstance(conversation, StoredConversation):
                return
            if _with(conversation, data).n_bytes > self._max_bytes:
                log.warning("a response is too large for its conversation, which stays without it")
                return
            self._entries.move_to_end(id)
            self._add(conversation, items, data)

    def _add(self, conversation: StoredConversation, items: Sequence[Item], data: Sequence[bytes]) -> list[Item]:
        n_before = conversation.n_bytes
        added = list(map(conversation.add, items, data))
        self._n_bytes += conversation.n_bytes - n_before
        self._make_room()
        return added

    def take_out(self, id: str, item_id: str) -> StoredConversation:
        """Deletes an item of a conversation, which it returns. Raises NotFound."""
        with self._lock:
            conversation = self._find(id, StoredConversation, None)
            if item_id not in conversation.items:
                raise item_not_found(item_id)
            n_before = conversation.n_bytes
            conversation.count(less=(conversation.items.pop(item_id),))
            self._n_bytes += conversation.n_bytes - n_before
            return _copy(conversation)

    def end(self, id: str) -> None:
        """Forgets a conversation with its items. Raises NotFound."""
        with self._lock:
            self._find(id, StoredConversation, None)
            self._forget(id)


def _encode(items: Sequence[Item]) -> list[bytes]:
    """Lets others run meanwhile."""
    return list(map(msgspec.json.encode, Turns().among(items)))


def _with(conversation: StoredConversation, data: Iterable[bytes]) -> StoredConversation:
    """Counts a conversation with more items, which are not added."""
    grown = replace(conversation, items={})
    grown.count(data)
    return grown


def _copy(conversation: StoredConversation) -> StoredConversation:
    return replace(conversation, items=dict(conversation.items))


def item_not_found(id: str) -> NotFound:
    return NotFound(f"no item '{id[:80]}' is in this conversation", "item_id", "item_not_found")


def _not_found(kind: str, id: str, param: str | None) -> NotFound:
    return NotFound(f"no {kind} '{id[:80]}' is stored here", param, f"{kind}_not_found")
