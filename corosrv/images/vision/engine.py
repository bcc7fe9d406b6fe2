"""A model that takes images: an engine for the text, and an encoder process for the images."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gevent.hub import get_hub

from corosrv.base import errors
from corosrv.base.waits import ThreadLock, own_hub
from corosrv.contracts.jobs import Adapter, AnyJob, Job, ModelCard, SlotFile, SlotState, Vocabulary
from corosrv.contracts.jobs.stats import DecodeStats
from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.encoder import EncoderStats, ImageEncoder
from corosrv.images.vision.options import encoder_options, encoder_share
from corosrv.images.vision.prompts import ImagePrompts, VisionVocabulary, count_rows, has_images
from corosrv.images.vision.turns import EncoderTurns
from corosrv.images.vision.waiting import MakeWatch
from corosrv.models.engine import Engine
from corosrv.models.engine.reader import Reader
from corosrv.models.loadable import Footprint

log = logging.getLogger("corosrv.vision")

CAPABILITY = "images"
FAREWELL = 10.0  # seconds in which the hub closes an encoder for another thread


class VisionEngine:
    """Serves a model with a projector, as a Loadable. Belongs to the thread of the hub that opens it; not `close`."""

    def __init__(self, settings: ModelSettings, make_watch: MakeWatch) -> None:
        """`make_watch`: makes what tells that the client of the current request has left."""
        self._settings = settings
        self._engine = Engine(settings)
        self._make_watch = make_watch
        self._owner = os.getpid()
        self._hub: Any = None
        self._encoder: ImageEncoder | None = None

    def open(self) -> None:
        """Loads the model, then starts the encoder; waits until both are ready. Raises ModelFailed."""
        self._engine.open()
        width = self.card(None).row_width
        if not width:
            raise errors.ModelFailed("the projector cannot be used: embedding rows are not read by this model")
        self._hub = get_hub()
        try:
            turns = EncoderTurns(self._engine, encoder_share(self._settings), self._settings.itl_ms / 1000)
            self._encoder = ImageEncoder(encoder_options(self._settings, width), width, turns)
            self._encoder.start()
        except (errors.CorosrvError, OSError) as error:
            log.error("images cannot be served: %s", error)
            raise errors.ModelFailed(self._without_folders(str(error))) from error

    def _without_folders(self, words: str) -> str:
        """Returns an error's words as clients may read them: they are not told where files lie."""
        for file in (self._settings.mmproj, self._settings.model):
            words = words.replace(file, Path(file).name)
        return words

    @property
    def info(self) -> Footprint:
        return self._engine.info

    def card(self, model: str | None) -> ModelCard:
        card = self._engine.card(model)
        return replace(card, capabilities=card.capabilities | {CAPABILITY})

    def vocabulary(self, model: str | None) -> Vocabulary:
        return VisionVocabulary(self._engine.vocabulary(model), self._prompts())

    def submit(self, job: AnyJob) -> Reader:
        """Waits for the images of a job's prompts, then submits it with their rows; see Engine.submit.

        Raises ClientGone, DeadlinePassed and Unavailable as well.
        """
        if isinstance(job, Job) and any(map(has_images, job.prompts)):
            self._engine.check()
            job = replace(job, prompts=self._prompts().read(job.prompts, job.terms))
            reader = self._engine.submit(job)
            reader.image_tokens = [count_rows(prompt) for prompt in job.prompts for _ in range(job.n)]
            return reader
        return self._engine.submit(job)

    def _prompts(self) -> ImagePrompts:
        if self._encoder is None:
            raise errors.Starting("the encoder of images is not ready")
        return ImagePrompts(self._engine.vocabulary(None), self._encoder, self._make_watch)

    def encoder_stats(self) -> EncoderStats | None:
        """Returns the encoder's counters; None before it is started and after it is closed."""
        encoder = self._encoder
        return None if encoder is None or os.getpid() != self._owner else encoder.stats()

    @property
    def is_degraded(self) -> bool:
        """Returns whether images are refused because the encoder died too often."""
        return self._encoder is not None and self._encoder.is_degraded

    def stats(self) -> DecodeStats | None:
        return self._engine.stats()

    def slots(self) -> tuple[SlotState, ...]:
        return self._engine.slots()

    def save_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        return self._engine.save_slot(slot, path, caller)

    def restore_slot(self, slot: int, path: str, caller: str = "") -> SlotFile:
        return self._engine.restore_slot(slot, path, caller)

    def erase_slot(self, slot: int, caller: str = "") -> int:
        return self._engine.erase_slot(slot, caller)

    def adapters(self) -> tuple[Adapter, ...]:
        return self._engine.adapters()

    def set_adapters(self, scales: Mapping[int, float]) -> None:
        self._engine.set_adapters(scales)

    # The end.

    def drain(self, message: str = "the server is shutting down") -> None:
        """Ends every job, waiting or running, with an error of this message, those that wait for images among them."""
        if self._encoder is not None and os.getpid() == self._owner:
            self._encoder.drain(message)
        self._engine.drain(message)

    def close(self) -> None:
        """Ends every job, the decode thread and the encoder process; waits for them. Any thread; twice is harmless."""
        if os.getpid() != self._owner:
            return
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            self._close(encoder)
        self._engine.close()

    def _close(self, encoder: ImageEncoder) -> None:
        if own_hub() is self._hub:
            return encoder.close()
        is_closed = ThreadLock()
        is_closed.acquire()

        def close() -> None:
            try:
                encoder.close()
            finally:
                is_closed.release()

        self._hub.loop.run_callback_threadsafe(gevent.spawn, close)
        if not is_closed.acquire(timeout=FAREWELL):
            log.error("the encoder of images could not be closed in time")
