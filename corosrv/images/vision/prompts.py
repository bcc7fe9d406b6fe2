"""Turns prompts with images into pieces: token ids, and rows where the images stand.

The vocabulary of a model that takes images: it reads prompts with them as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeGuard

from corosrv.contracts.jobs import Image, InfillTokens, Messages, MultimodalText, Pieces, Prompt, Rows, Terms, Tokens
from corosrv.images.vision.encoder import ImageEncoder
from corosrv.images.vision.task import EncodedImage
from corosrv.images.vision.waiting import MakeWatch, encode_images
from corosrv.models.engine.vocabulary import EngineVocabulary

ImagePrompt = Messages | MultimodalText


def has_images(prompt: Prompt) -> TypeGuard[ImagePrompt]:
    """Returns whether images stand in a prompt."""
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


MEDIA_MARKER = "<__media__>"  # what is shown for an image in a text, as libmtmd has it


class VisionVocabulary:
    """Reads texts as the engine's vocabulary does, and waits for images. See corosrv.contracts.jobs.Vocabulary."""

    def __init__(self, vocabulary: EngineVocabulary, images: ImagePrompts) -> None:
        self._vocabulary = vocabulary
        self._images = images
        self.size: int = vocabulary.size
        self.bos: str = vocabulary.bos
        self.eos: str = vocabulary.eos
        self.end_tokens: tuple[int, ...] = vocabulary.end_tokens
        self.chat_template: str = vocabulary.chat_template
        self.infill: InfillTokens | None = vocabulary.infill

    @property
    def template_abilities(self) -> frozenset[str]:
        return self._vocabulary.template_abilities

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        return self._vocabulary.tokenize(text, add_special, parse_special, param)

    def piece(self, token: int) -> bytes:
        return self._vocabulary.piece(token)

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
