"""Makes the options of an encoder of a model's settings."""

from __future__ import annotations

from corosrv.contracts.settings import ModelSettings
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL
from corosrv.images.transfer.stats import TransferLimits
from corosrv.images.vision.encoder import EncoderOptions
from corosrv.images.vision.link import EncoderCommand
from corosrv.models.engine import libllama
from corosrv.models.engine.libllama import physical_cores

STAGING_BYTES = 256 << 20  # of the rows that are on their way
MAX_ROWS = 1 << 24  # of an image, by an encoder that keeps to the protocol
MAX_ACTIVE = 2  # transfers: one is encoded, and the encoder finds the next when it is done
SUPPORTS = (MROPE, NON_CAUSAL)  # what the decode loop does for rows
DEADLINE_ENCODES = 4  # an image waits for as many encodes of the longest time before it is given up
LEAST_SHARE = 0.1  # of a step's time, where no share is set; see native/src/loop/side_share.h


def encoder_command(settings: ModelSettings) -> EncoderCommand:
    return EncoderCommand(
        model=settings.model,
        mmproj=settings.mmproj,
        n_threads=settings.encoder_threads or physical_cores(),
        nice=settings.encoder_nice,
        image_min_tokens=settings.image_min_tokens,
        image_max_tokens=settings.image_max_tokens,
        on_gpu=settings.mmproj_offload,
        supports=SUPPORTS,
    )


def encoder_share(settings: ModelSettings) -> float | None:
    """Returns the encoder's time after each step, as a part of the step's; None: as the streams have it.

    0, for all the time: where the processors suffice for both, and where a GPU computes the steps.
    """
    n_cores = physical_cores()
    if (settings.threads or n_cores) + (settings.encoder_threads or n_cores) <= n_cores or _uses_gpu(settings):
        return 0.0
    return settings.encoder_share


def _uses_gpu(settings: ModelSettings) -> bool:
    if settings.gpu_layers == "0" or "none" in settings.devices:
        return False
    return any(not device.is_processor for device in libllama.devices())


def encoder_options(settings: ModelSettings, n_embd: int) -> EncoderOptions:
    """Makes the options of an encoder process. `n_embd`: the width of a row."""
    # A limit of an encode counts the time in which it could run; this one counts all, also beside streams.
    deadline = DEADLINE_ENCODES * settings.encode_timeout_s * (1 + 1 / (settings.encoder_share or LEAST_SHARE))
    return EncoderOptions(
        command=encoder_command(settings),
        n_blocks=settings.encoder_blocks,
        cache_bytes=settings.image_cache_bytes,
        encode_limit=settings.encode_timeout_s,
        limits=TransferLimits(
            max_active=MAX_ACTIVE,
            max_queued=settings.encoder_queue,
            staging_budget=STAGING_BYTES,
            # Of the next two, an image is refused for the first, where its rows have more bytes than may be on their
            # way. What is too long for the context is told to clients as for any prompt.
            max_rows=MAX_ROWS,
            open_timeout=deadline,
            deadline=deadline,
        ),
    )
