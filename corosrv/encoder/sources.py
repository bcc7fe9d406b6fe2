"""Chooses what encodes an item: libmtmd for images, the token table for tokens."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from corosrv.encoder.encoding import Encoding, EncodingFailed
from corosrv.encoder.gguf_head import GgufHead
from corosrv.encoder.mtmd import LogTail, Projector
from corosrv.encoder.pairing import Pair, check_pair
from corosrv.encoder.table import TokenTable
from corosrv.encoder.trial import Trial, try_projector
from corosrv.errors import ProtocolError
from corosrv.transfer.messages import MTMD, TABLE, ImagePixels, OpenTransfer, TokenIds
from corosrv.wire import attached

log = logging.getLogger("corosrv.encoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Says which files an encoder opens, and how. An empty `mmproj` is none."""

    model: str
    mmproj: str = ""
    n_threads: int = 4
    image_max_tokens: int = 0  # rows of an image, where its size decides; 0: as the projector file says
    supports: Collection[str] = ()  # what the decode loop does for rows, see corosrv.transfer.messages


class Sources:
    """Owns the opened files. Belongs to the thread that encodes."""

    def __init__(self, options: SourceOptions) -> None:
        """Opens the files. Takes seconds.

        Raises LoadError, also for a projector whose rows the decode loop cannot read.
        """
        self._table = TokenTable(options.model)
        self._projector: Projector | None = None
        if options.mmproj:
            log.info("opening the projector %s", options.mmproj)
            self._projector, trial = open_projector(options)
            log.info("a small image became %d rows in %.3g s", trial.n_rows, trial.seconds)
        self.n_embd = self._projector.n_embd if self._projector else self._table.n_embd

    def encode(self, message: OpenTransfer, pixels: int) -> Encoding:
        """Returns the rows of an item, whose pixels are in the memory file `pixels`. Raises EncodingFailed."""
        payload = message.payload
        if message.source == TABLE and isinstance(payload, TokenIds):
            return self._table.encode(payload.ids)
        if message.source != MTMD or not isinstance(payload, ImagePixels):
            raise EncodingFailed("bad_source", f"the source {message.source!r:.40} takes no such item")
        if self._projector is None:
            raise EncodingFailed("no_projector", "this encoder has no projector file")
        try:
            content = attached.map_value(pixels, 3 * payload.width * payload.height)
        except ProtocolError as error:
            raise EncodingFailed("bad_image", str(error)) from error
        return self._projector.encode(payload.width, payload.height, content)


def open_projector(options: SourceOptions) -> tuple[Projector, Trial]:
    """Opens a projector, and tries it. Takes seconds.

    Raises LoadError, also for one whose rows the decode loop cannot read.
    """
    tail = LogTail(lambda line: log.debug("%s", line))
    tail.attach()
    with GgufHead(options.mmproj) as head:
        head.check_length()
        kind = head.projector_kind
    projector = Projector(options.mmproj, options.model, tail, options.n_threads, options.image_max_tokens)
    pair = Pair(
        mmproj=options.mmproj,
        model=options.model,
        kind=kind,
        is_mrope=projector.is_mrope,
        has_attention=projector.has_attention,
        is_non_causal=projector.is_non_causal,
    )
    check_pair(pair, options.supports)
    return projector, try_projector(projector, options.mmproj)
