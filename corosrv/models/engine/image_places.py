"""Marks the places of images in a conversation while its template runs, and finds them again in what it wrote."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Image, Messages
from corosrv.models.engine.marks import Piece

_WORD_BYTES = 16
_WORD = re.compile(f"image[0-9a-f]{{{2 * _WORD_BYTES}}}")


class ImagePlaces:
    """Puts words into texts in place of images. Nobody can guess them, so nobody can write them into a text."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}

    def mark(self, prompt: Messages) -> Messages:
        """Returns the conversation with a word of its own in place of each image."""
        return replace(prompt, messages=tuple(map(self._mark_turn, prompt.messages)))

    def _mark_turn(self, turn: dict[str, Any]) -> dict[str, Any]:
        content = turn.get("content")
        if not isinstance(content, tuple):
            return turn
        return {**turn, "content": "".join(part if isinstance(part, str) else self._word(part) for part in content)}

    def _word(self, image: Image) -> str:
        word = f"image{secrets.token_hex(_WORD_BYTES)}"
        self._images[word] = image
        return word

    def split(self, pieces: Sequence[Piece], param: str) -> list[list[Piece] | Image]:
        """Returns runs of text, and the images between them; a run stands before the first and behind the last.

        Raises Refused if the template has left out an image.
        """
        runs: list[list[Piece] | Image] = [[]]
        missing = set(self._images)
        for piece in pieces:
            end = 0
            for match in _WORD.finditer(piece.text):
                if match.group() not in self._images:  # a user's
                    continue
                _add(runs, piece.text[end : match.start()], piece.is_text)
                runs += [self._images[match.group()], []]
                missing.discard(match.group())
                end = match.end()
            _add(runs, piece.text[end:], piece.is_text)
        if missing:
            raise Refused("the model's chat template leaves out an image", param, "invalid_template")
        return runs


def _add(runs: list[list[Piece] | Image], text: str, is_text: bool) -> None:
    run = runs[-1]
    assert isinstance(run, list)
    if text:
        run.append(Piece(text, is_text))
