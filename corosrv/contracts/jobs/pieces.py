"""Prompts that are not text alone: runs of token ids, and embedding rows where an image or a client put them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

FLOAT_BYTES = 4  # of a number in a row: rows are of little-endian float32
POSITION_BYTES = 16  # of a row's position: four of little-endian int32


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt, or a piece of one, as token ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Holds `n` embedding rows, which stand in a prompt in place of as many tokens.

    `data` is n x width numbers of little-endian float32 in C order; `width` is what the model wants
    (ModelCard.row_width). `sha256`, 64 lower-case hexadecimal digits, is of `data`, and never of an image that the rows
    were made of: prompts whose rows have the same, and are read alike, share what is computed of them.

    How the model reads the rows: `is_non_causal`, each sees all of them, so that they have to fit into one step;
    `positions`, of models with M-RoPE, four numbers of little-endian int32 for each row (t, y, x, z: libllama's order),
    of which t, y and x count from the first position of the rows; `n_positions`, by how much the positions of the
    sequence move then. Without them rows stand one after another, as tokens do.

    Raises ValueError for a size that is not as `n` and `width` say.
    """

    sha256: str
    data: bytes
    n: int
    width: int
    is_non_causal: bool = False
    n_positions: int = 0
    positions: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.n < 1 or self.width < 1 or len(self.data) != FLOAT_BYTES * self.n * self.width:
            raise ValueError(f"{self.n} rows of {self.width} numbers do not have {len(self.data)} bytes")
        if self.positions and len(self.positions) != POSITION_BYTES * self.n:
            raise ValueError(f"{self.n} rows do not have positions of {len(self.positions)} bytes")

    @classmethod
    def of_data(
        cls, data: bytes, width: int, *, is_non_causal: bool = False, n_positions: int = 0, positions: bytes = b""
    ) -> Rows:
        """Counts and hashes the rows in `data`; takes half a millisecond for a megabyte."""
        n = len(data) // (FLOAT_BYTES * width) if width > 0 else 0
        return cls(hashlib.sha256(data).hexdigest(), data, n, width, is_non_causal, n_positions, positions)

    @property
    def is_read_as_tokens(self) -> bool:
        """Returns whether each row stands behind the one before, and sees what came before it."""
        return not (self.is_non_causal or self.positions)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A prompt of token ids and embedding rows, in order. Nothing is put before, between or behind its pieces."""

    pieces: tuple[Tokens | Rows, ...]

    @property
    def n_tokens(self) -> int:
        """Counts the places that the prompt takes in a context: a token or a row each."""
        return sum(piece.n if isinstance(piece, Rows) else len(piece.ids) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a conversation, decoded: `pixels` are RGB, 3 x width x height bytes, row by row from the top.

    `sha256`, 64 lower-case hexadecimal digits, is of the width and the height as four little-endian bytes each and
    then of the pixels. Raises ValueError for a size that is not as `width` and `height` say.
    """

    sha256: str
    width: int
    height: int
    pixels: bytes = field(repr=False)
    file: bytes = field(default=b"", compare=False, repr=False)  # that was decoded, where it is to be stored
    lease: object = field(default=None, compare=False, repr=False)  # ends with the image: see corosrv.images.memory

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or len(self.pixels) != 3 * self.width * self.height:
            raise ValueError(f"an image of {self.width} x {self.height} pixels does not have {len(self.pixels)} bytes")

    @classmethod
    def of_pixels(cls, width: int, height: int, pixels: bytes) -> Image:
        """Hashes the pixels; takes half a millisecond for a megabyte."""
        digest = hashlib.sha256(width.to_bytes(4, "little") + height.to_bytes(4, "little"))
        digest.update(pixels)
        return cls(digest.hexdigest(), width, height, pixels)
