"""Defines the messages between a server and a process that decodes images for it."""

from __future__ import annotations

import msgspec

from corosrv.workers.wire.messages import ProcessMessage


class _Message(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


class DecodeImage(_Message, frozen=True, tag="decode"):
    """Asks for an image's pixels. Two sealed memory files come with it: the image's file, and room for the pixels.

    The room has 3 bytes for each pixel of the image's header.
    """

    image_format: str  # the value of an ImageFormat
    n_bytes: int  # of the file
    n_pixels: int  # of its header
    param: str  # where the image stood in the request, for the words of a refusal
    max_side: int = 0  # pixels of the longer side, to which a larger image is made smaller; 0: it stays as it is


class ImageDecoded(_Message, frozen=True, tag="decoded"):
    """Reports that RGB pixels stand in the room, row by row from the top."""

    width: int
    height: int


class DecodingRefused(_Message, frozen=True, tag="refused"):
    """Reports that the image has no pixels that can be read."""

    reason: str


FromDecoder = ImageDecoded | DecodingRefused | ProcessMessage
