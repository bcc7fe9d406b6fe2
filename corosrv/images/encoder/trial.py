"""Tries a projector before requests do: a file that is damaged may open, and end the process at its first use."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from corosrv.base.errors import LoadError
from corosrv.images.encoder.encoding import EncodingFailed
from corosrv.images.encoder.mtmd import Projector

SIDE = 64  # pixels of the trial's image


@dataclass(frozen=True, slots=True)
class Trial:
    """Says what became of a small image."""

    n_rows: int
    seconds: float


def try_projector(projector: Projector, path: str) -> Trial:
    """Encodes a small image. Takes as long as that does; raises LoadError where no finite rows come out."""
    pixels = bytes(range(256)) * (3 * SIDE * SIDE // 256)
    began = time.monotonic()
    try:
        encoding = projector.encode(SIDE, SIDE, memoryview(pixels))
    except EncodingFailed as error:
        raise LoadError(f"the projector {path} does not encode an image of {SIDE} x {SIDE} pixels: {error}") from error
    if not math.isfinite(sum(encoding.rows.cast("f"))):  # in float64, where no sum of finite numbers overflows
        raise LoadError(f"the projector {path} makes numbers of an image that are not finite: the file is damaged")
    return Trial(encoding.total, time.monotonic() - began)
