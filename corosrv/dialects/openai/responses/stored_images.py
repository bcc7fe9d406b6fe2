"""Images of stored conversations: each kept once for all that have it, as the file that a client sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from corosrv.base.errors import NotSupported
from corosrv.contracts.jobs import Image
from corosrv.dialects.chat.conversation import Part, Turn
from corosrv.images.intake import ImageIntake


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image, as its file or as its pixels, whichever takes less."""

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
