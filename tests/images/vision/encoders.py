"""Encoders of the tiny model, with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event

from corosrv.contracts.jobs import Image, Terms
from corosrv.images.transfer.stats import TransferLimits
from corosrv.images.vision.encoder import EncoderOptions, ImageEncoder, encode_images
from corosrv.images.vision.engine import SUPPORTS
from corosrv.images.vision.link import EncoderCommand
from corosrv.images.vision.task import EncodedImage
from tests.support import projector

N_EMBD = 32
WAIT = 30.0  # seconds for what should come soon


class NobodyLeaves:
    """Watches nobody."""

    is_gone = False

    def __init__(self, on_gone: Any) -> None:
        pass

    def close(self) -> None:
        pass


def options(model: Path, mmproj: Path, **changes: Any) -> EncoderOptions:
    limits = TransferLimits(**changes.pop("limits", {}))
    values: dict[str, Any] = {"n_blocks": 8, "cache_bytes": 1 << 20, "encode_limit": WAIT} | changes
    return EncoderOptions(
        command=EncoderCommand(model=str(model), mmproj=str(mmproj), n_threads=1, supports=SUPPORTS),
        limits=limits,
        **values,
    )


def image(seed: int = 1, width: int = 56, height: int = 56) -> Image:
    return Image.of_pixels(width, height, projector.random_pixels(width, height, seed))


def measure(encoder: ImageEncoder, picture: Image) -> int:
    """Returns how many tokens an image becomes. Waits for the encoder's answer."""
    while (n_tokens := encoder.n_tokens(picture, (has_answered := Event()).set)) is None:
        assert has_answered.wait(WAIT), "the encoder does not answer"
    return n_tokens


def encode(encoder: ImageEncoder, *images: Image, caller: str = "") -> dict[str, EncodedImage]:
    """Encodes images as a request does."""
    with gevent.Timeout(WAIT):
        return encode_images(encoder, images, Terms(caller=caller), NobodyLeaves)
