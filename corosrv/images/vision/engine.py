"""A model that takes images: an engine for the text, and an encoder process for the images.

A prompt with images becomes pieces: token ids, and rows where the images stand. Its vocabulary counts and reads prompts
with images as well; that waits for them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import gevent
from gevent.hub import get_hub

from corosrv.base import errors
from corosrv.base.waits import ThreadLock, own_hub
from corosrv.contracts.jobs import (
    AnyJob,
    Image,
    InfillTokens,
    Job,
    Messages,
    ModelCard,
    MultimodalText,
    Pieces,
    Prompt,
    Rows,
    Terms,
    Tokens,
    Vocabulary,
)
from corosrv.contracts.jobs.terms import part_of
from corosrv.contracts.settings import ModelSettings
from corosrv.images.intake import MEDIA_MARKER
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL
from corosrv.images.transfer.stats import TransferLimits
from corosrv.images.vision.encoder import EncoderOptions, EncoderStats, ImageEncoder, MakeWatch, encode_images
from corosrv.images.vision.link import EncoderCommand
from corosrv.images.vision.task import EncodedImage
from corosrv.images.vision.turns import EncoderTurns
from corosrv.models.engine import Engine, libllama
from corosrv.models.engine.libllama import physical_cores
from corosrv.models.engine.reader import Reader
from corosrv.models.engine.vocabulary import EngineVocabulary
from corosrv.models.loadable import Footprint, LoadProgress

log = logging.getLogger("corosrv.vision")

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


if TYPE_CHECKING:
    from corosrv.models.engine.process.jobs import RemoteReader
    from corosrv.models.engine.process.remote import RemoteEngine

    LanguageEngine = Engine | RemoteEngine

ImagePrompt = Messages | MultimodalText


def has_images(prompt: Prompt) -> TypeGuard[ImagePrompt]:
    if isinstance(prompt, Messages):
        return any(isinstance(turn.get("content"), tuple) for turn in prompt.messages)
    return isinstance(prompt, MultimodalText)


def count_rows(prompt: Prompt) -> int:
    """Returns how many rows stand in a prompt in place of its images."""
    return sum(piece.n for piece in prompt.pieces if isinstance(piece, Rows)) if isinstance(prompt, Pieces) else 0


class ImagePrompts:
    """Reads prompts with images for one model. Belongs to the thread of its encoder."""

    def __init__(self, vocabulary: EngineVocabulary, encoder: ImageEncoder, make_watch: MakeWatch) -> None:
        """`make_watch`: see encode_images."""
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._make_watch = make_watch

    def read(self, prompts: Sequence[Prompt], terms: Terms) -> tuple[Prompt, ...]:
        """Returns the prompts with pieces in place of those that have images; others stay as they are.

        Waits for the images of all of them, once the texts are known to be good, and fit with their images. Raises
        Refused, and what encode_images raises.
        """
        texts = {
            number: self._vocabulary.parts(prompt, number, len(prompts))
            for number, prompt in enumerate(prompts)
            if has_images(prompt)
        }
        images = [part for parts in texts.values() for part in parts if isinstance(part, Image)]

        def check(n_tokens: Mapping[str, int]) -> None:
            for number, parts in texts.items():
                n = sum(len(part.ids) if isinstance(part, Tokens) else n_tokens[part.sha256] for part in parts)
                self._vocabulary.check_room(n, prompts[number], number, len(prompts))

        encoded = encode_images(self._encoder, images, terms, self._make_watch, check)
        return tuple(
            _pieces(texts[number], encoded) if number in texts else prompt for number, prompt in enumerate(prompts)
        )


def _pieces(parts: Sequence[Tokens | Image], encoded: Mapping[str, EncodedImage]) -> Pieces:
    """Puts the pieces of images between those of texts; token ids in a row become one piece."""
    pieces: list[Tokens | Rows] = []
    for part in parts:
        for piece in (part,) if isinstance(part, Tokens) else encoded[part.sha256].pieces:
            if isinstance(piece, Tokens) and pieces and isinstance(pieces[-1], Tokens):
                pieces[-1] = Tokens(pieces[-1].ids + piece.ids)
            else:
                pieces.append(piece)
    return Pieces(tuple(pieces))


class VisionVocabulary:
    """Reads texts as the engine's vocabulary does, and waits for images. See corosrv.contracts.jobs.Vocabulary."""

    def __init__(self, vocabulary: EngineVocabulary, images: ImagePrompts) -> None:
        self._vocabulary = vocabulary
        self._images = images
        self.size: int = vocabulary.size
        self.end_tokens: tuple[int, ...] = vocabulary.end_tokens
        self.infill: InfillTokens | None = vocabulary.infill
        self.tokenize, self.piece, self.is_hidden = vocabulary.tokenize, vocabulary.piece, vocabulary.is_hidden

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Returns what tokens print in a row, and a marker in place of the rows of images."""
        runs = groupby(tokens, key=lambda token: token < 0)
        return b"".join(MEDIA_MARKER.encode() if is_rows else self._vocabulary.spell(run) for is_rows, run in runs)

    def render(self, prompt: Messages) -> str:
        """Renders a conversation, with a marker in place of each image."""
        return self._vocabulary.render(replace(prompt, messages=tuple(map(_marked, prompt.messages))))

    def count(self, prompt: Prompt) -> int:
        return len(self.encode(prompt))

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """Returns the tokens of a prompt, with a negative number for each row of an image. Waits for images."""
        (prompt,) = self._images.read((prompt,), Terms())
        return self._vocabulary.encode(prompt, number, n_prompts)


def _marked(turn: dict[str, Any]) -> dict[str, Any]:
    content = turn.get("content")
    if not isinstance(content, tuple):
        return turn
    return {**turn, "content": "".join(part if isinstance(part, str) else MEDIA_MARKER for part in content)}


CAPABILITY = "images"
FAREWELL = 10.0  # seconds in which the hub closes an encoder for another thread


class VisionEngine:
    """Serves a model with a projector, as a Loadable. Belongs to the thread of the hub that opens it; not `close`."""

    def __init__(self, settings: ModelSettings, make_watch: MakeWatch, engine: LanguageEngine | None = None) -> None:
        """`make_watch`: makes what tells that the client of the current request has left.

        `engine`: for the text; None makes one in this process.
        """
        self._settings = settings
        self._engine = Engine(settings) if engine is None else engine
        self._make_watch = make_watch
        self._owner = os.getpid()
        self._hub: Any = None
        self._encoder: ImageEncoder | None = None
        # All that has to do with texts alone is the engine's own.
        texts = self._engine
        self.stats, self.slots = texts.stats, texts.slots
        self.save_slot, self.restore_slot, self.erase_slot = (
            texts.save_slot,
            texts.restore_slot,
            texts.erase_slot,
        )
        self.adapters, self.set_adapters = texts.adapters, texts.set_adapters

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
    def load_progress(self) -> LoadProgress:
        return self._engine.load_progress

    @property
    def info(self) -> Footprint:
        return self._engine.info

    def card(self, model: str | None) -> ModelCard:
        card = self._engine.card(model)
        return replace(card, capabilities=card.capabilities | {CAPABILITY})

    def vocabulary(self, model: str | None) -> Vocabulary:
        return VisionVocabulary(self._engine.vocabulary(model), self._prompts())

    def submit(self, job: AnyJob) -> Reader | RemoteReader:
        """Waits for the images of a job's prompts, then submits it with their rows; see Engine.submit.

        Raises ClientGone, DeadlinePassed and Unavailable as well.
        """
        if isinstance(job, Job) and any(map(has_images, job.prompts)):
            self._engine.check()
            with part_of(job.terms.trace, "encode", {}):
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
