"""Defines the messages between the language side, which owns the pool, and its encoder process.

All travel over the control channel as msgpack, and each carries the epoch: the number of the encoder process among
those that this pool has had. Messages of another epoch, or of a transfer that the receiver does not know, are dropped.
Rows travel in the pool alone: little-endian float32, `n_embd` numbers each.
"""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 3

MROPE, NON_CAUSAL = "mrope", "non_causal"  # what rows may need of the decode loop


class _TransferMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    epoch: int


class Geometry(msgspec.Struct, frozen=True):
    """Says how the pool is cut into blocks. All sizes are bytes but `block_rows`, the rows that a block holds."""

    n_blocks: int
    block_rows: int
    row_bytes: int
    stride: int  # from one block to the next


class ImagePixels(msgspec.Struct, frozen=True):
    """Describes an image whose pixels come beside the message, in a sealed memory file of 3 * width * height bytes.

    They are RGB, row by row from the top.
    """

    width: int
    height: int


class TokenSegment(msgspec.Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Holds tokens that stand around or between rows, as libmtmd puts them there. They are not transferred."""

    ids: tuple[int, ...]


class RowSegment(msgspec.Struct, frozen=True, tag="rows", tag_field="kind", omit_defaults=True):
    """Announces `n` rows that are transferred, and how the decode loop has to read them.

    `n_positions`: how far the positions of the sequence move; 0 where it is `n`. `positions`: of M-RoPE, four for each
    row (t, y, x, z: libllama's order), relative to the first position of the segment; empty otherwise.
    """

    n: int
    is_non_causal: bool = False
    is_mrope: bool = False
    n_positions: int = 0
    positions: tuple[tuple[int, int, int, int], ...] = ()


Segment = TokenSegment | RowSegment


class Hello(_TransferMessage, frozen=True, tag="hello"):
    """Comes first in both directions: to the encoder with the pool as a descriptor, and back once it has loaded.

    `n_embd`: the width of a row; 0 from a side that does not know it. An encoder that differs is not used.
    """

    version: int
    geometry: Geometry
    n_embd: int


# To the encoder.


class OpenTransfer(_TransferMessage, frozen=True, tag="open"):
    """Asks for the rows of an image. `tid` is higher than any before it."""

    tid: int
    image: ImagePixels


class GrantBlocks(_TransferMessage, frozen=True, tag="grant"):
    """Lends blocks for the rows from `offset` on, once they are described; `capacity` is blocks times block_rows.

    Generations begin at 1.
    """

    tid: int
    gen: int
    offset: int
    blocks: tuple[int, ...]
    capacity: int


class CancelTransfer(_TransferMessage, frozen=True, tag="cancel"):
    """Stops a transfer; answered by TransferAborted."""

    tid: int


class CloseTransfer(_TransferMessage, frozen=True, tag="close"):
    """Ends a transfer of which all rows were copied; the encoder drops its own."""

    tid: int


class MeasureImage(_TransferMessage, frozen=True, tag="measure"):
    """Asks how many tokens an image of a size becomes; answered by ImageMeasured, before the next encode begins."""

    width: int
    height: int


# To the language side.


class TransferMeta(_TransferMessage, frozen=True, tag="meta"):
    """Describes the item once it is encoded. `total` is the sum of the rows of its segments."""

    tid: int
    total: int
    n_embd: int
    segments: tuple[Segment, ...]


class BlocksFilled(_TransferMessage, frozen=True, tag="filled"):
    """Reports that rows `offset` to `offset + n` and the headers of their blocks are written."""

    tid: int
    gen: int
    offset: int
    n: int
    total: int


class EncodeFailed(_TransferMessage, frozen=True, tag="enc_failed"):
    """Reports that a transfer was given up, and that nothing more will be written for it."""

    tid: int
    code: str
    text: str


class TransferAborted(_TransferMessage, frozen=True, tag="aborted"):
    """Answers CancelTransfer: nothing more will be written for the transfer."""

    tid: int


class ImageMeasured(_TransferMessage, frozen=True, tag="measured"):
    """Answers MeasureImage. `n_tokens`: rows, and tokens around and between them; 0 where the size has none."""

    width: int
    height: int
    n_tokens: int


ToEncoder = Hello | OpenTransfer | GrantBlocks | CancelTransfer | CloseTransfer | MeasureImage
ToLanguage = Hello | TransferMeta | BlocksFilled | EncodeFailed | TransferAborted | ImageMeasured
