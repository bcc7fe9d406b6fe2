"""Opens a projector file, and refuses one that cannot be used before images come."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from corosrv.images.encoder.gguf_head import GgufHead
from corosrv.images.encoder.mtmd import LogTail, Projector
from corosrv.images.encoder.pairing import Pair, check_pair
from corosrv.images.encoder.trial import Trial, try_projector

log = logging.getLogger("corosrv.encoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorOptions:
    """Says which files an encoder opens, and how."""

    model: str
    mmproj: str
    n_threads: int = 4
    image_max_tokens: int = 0  # rows of an image, where its size decides; 0: as the projector file says
    supports: Collection[str] = ()  # what the decode loop does for rows, see corosrv.images.transfer.messages


def open_projector(options: ProjectorOptions) -> tuple[Projector, Trial]:
    """Opens a projector, and tries it. Takes seconds.

    Raises LoadError, also for one whose rows the decode loop cannot read.
    """
    log.info("opening the projector %s", options.mmproj)
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
    trial = try_projector(projector, options.mmproj)
    log.info("a small image became %d rows in %.3g s", trial.n_rows, trial.seconds)
    return projector, trial
