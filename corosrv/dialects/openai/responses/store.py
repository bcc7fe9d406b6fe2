"""Responses that were answered, for as long as there is room: to be read again, and to go on from.

Each caller has the same room. Images of stored conversations are kept once for all responses that have them, as the
files that clients sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import msgspec

from corosrv.base.errors import NotFound, NotSupported
from corosrv.contracts.jobs import Image
from corosrv.dialects.chat.conversation import Part, Turn
from corosrv.dialects.openai.responses.answer_types import ResponseObject
from corosrv.images.intake import ImageIntake


@dataclass(frozen=True, slots=True)
class StoredImage:
    """Holds an image as its file, or as its pixels where these take less."""

    sha256: str
    content: bytes | Image

    @classmethod
    def of_image(cls, image: Image) -> StoredImage:
        if 0 < len(image.file) < len(image.pixels):
            return cls(image.sha256, image.file)
        return cls(image.sha256, replace(image, file=b"", lease=None))  # counted as the shelf's from now on

    @property
    def n_bytes(self) -> int:
        return len(self.content.pixels if isinstance(self.content, Image) else self.content)


@dataclass(slots=True)
class _Holding:
    image: StoredImage
    n_holders: int = 0


class StoredImages:
    """Keeps each image for as long as somebody holds it, and counts its bytes once."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._holdings: dict[str, _Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def hold(self, images: Iterable[StoredImage]) -> None:
        """Keeps images for one more holder, who names each of them once."""
        for image in images:
            holding = self._holdings.get(image.sha256)
            if holding is None:
                holding = self._holdings[image.sha256] = _Holding(image)
                self.n_bytes += image.n_bytes
            holding.n_holders += 1

    def let_go(self, hashes: Iterable[str]) -> None:
        """Ends the holding of one holder."""
        for sha256 in hashes:
            holding = self._holdings[sha256]
            holding.n_holders -= 1
            if not holding.n_holders:
                del self._holdings[sha256]
                self.n_bytes -= holding.image.n_bytes

    def get(self, sha256: str) -> StoredImage:
        return self._holdings[sha256].image


def take_images(turns: tuple[Turn, ...]) -> tuple[tuple[Turn, ...], dict[str, StoredImage]]:
    """Returns the turns with objects in place of their images, which name them, and the images by their SHA-256."""
    images: dict[str, StoredImage] = {}

    def name(part: Part) -> str | dict[str, str]:
        if isinstance(part, str):
            return part
        images.setdefault(part.sha256, StoredImage.of_image(part))
        return {"sha256": part.sha256}

    named = tuple(
        {**turn, "content": [name(part) for part in turn["content"]]} if isinstance(turn["content"], tuple) else turn
        for turn in turns
    )
    return named, images


def put_images(turns: tuple[Turn, ...], find: Callable[[str], StoredImage]) -> tuple[Turn, ...]:
    """Returns the turns with stored images in place of the objects that name them."""

    def part(value: str | dict[str, str]) -> str | StoredImage:
        return value if isinstance(value, str) else find(value["sha256"])

    return tuple(
        {**turn, "content": tuple(map(part, turn["content"]))} if isinstance(turn["content"], list) else turn
        for turn in turns
    )


def read_images(turns: tuple[Turn, ...], images: ImageIntake | None, param: str) -> tuple[Turn, ...]:
    """Returns the turns with images in place of stored ones, which are decoded again. Waits for them.

    `images` is None where the model takes none. Raises NotSupported then, and what ImageIntake.from_file raises.
    """
    stored = [part for turn in turns for part in _parts(turn) if isinstance(part, StoredImage)]
    if not stored:
        return turns
    if images is None:
        raise NotSupported(f"{param}: this model reads text only, and images are in the conversation", param)
    images.expect(len(stored), param)
    intake = images
    decoded: dict[str, Image] = {}

    def image(stored: StoredImage) -> Image:
        if isinstance(stored.content, Image):
            return stored.content
        if stored.sha256 not in decoded:
            decoded[stored.sha256] = intake.from_file(stored.content, param)
        return decoded[stored.sha256]

    return tuple(
        {**turn, "content": tuple(image(part) if isinstance(part, StoredImage) else part for part in _parts(turn))}
        if isinstance(turn["content"], tuple)
        else turn
        for turn in turns
    )


def _parts(turn: Turn) -> tuple[str | StoredImage, ...]:
    content = turn["content"]
    return content if isinstance(content, tuple) else ()


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
class _StoredResponse:
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
        self._responses: OrderedDict[str, _StoredResponse] = OrderedDict()
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
