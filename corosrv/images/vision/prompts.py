"""Turns prompts with images into pieces: token ids, and rows where the images stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from corosrv.contracts.jobs import Image, Messages, MultimodalText, Pieces, Prompt, Rows, Terms, Tokens
from corosrv.images.vision.cache import EncodedImage
from corosrv.images.vision.encoder import ImageEncoder
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
