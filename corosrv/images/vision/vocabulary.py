"""The vocabulary of a model that takes images: it reads prompts with them as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from corosrv.contracts.jobs import InfillTokens, Messages, Prompt, Terms
from corosrv.images.vision.prompts import ImagePrompts
from corosrv.models.engine.vocabulary import EngineVocabulary

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
