"""The vocabulary of a model that takes images: what is shown in their place, and what is read of them."""

from collections.abc import Iterable
from typing import Any

import pytest

from corosrv.contracts.jobs import Messages, Pieces, Terms, Text
from corosrv.images.vision.engine import VisionVocabulary
from tests.images.vision.encoders import image


class LetterVocabulary:
    """Has a token for each letter."""

    size, end_tokens, infill = 256, (2,), None

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str) -> list[int]:
        return [*text.encode(), add_special, parse_special, len(param)]

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def is_hidden(self, token: int) -> bool:
        return token == 2

    def spell(self, tokens: Iterable[int]) -> bytes:
        return bytes(tokens)

    def render(self, prompt: Messages) -> str:
        return "|".join(str(turn.get("content")) for turn in prompt.messages)

    def encode(self, prompt: Any, number: int, n_prompts: int) -> list[Any]:
        return [prompt, number, n_prompts]


class PieceMaker:
    """Reads every prompt as pieces of nothing."""

    def read(self, prompts: tuple[Any, ...], terms: Terms) -> tuple[Any, ...]:
        self.seen = prompts
        return (Pieces(()),)


@pytest.fixture
def images() -> PieceMaker:
    return PieceMaker()


@pytest.fixture
def vocabulary(images) -> VisionVocabulary:
    return VisionVocabulary(LetterVocabulary(), images)


def test_texts_are_read_as_without_images(vocabulary):
    assert vocabulary.tokenize("ab", True, False, "prompt") == [97, 98, True, False, 6]
    assert vocabulary.piece(97) == b"a"
    assert [vocabulary.is_hidden(token) for token in (2, 97)] == [True, False]
    assert (vocabulary.size, vocabulary.end_tokens, vocabulary.infill) == (256, (2,), None)


def test_rows_in_a_row_are_shown_as_one_marker_among_the_tokens(vocabulary):
    assert vocabulary.spell([97, -2, -2, -3, 98, 99, -4]) == b"a<__media__>bc<__media__>"


def test_a_conversation_is_shown_with_a_marker_for_each_image(vocabulary):
    turns = ({"content": "Hello"}, {"role": "user"}, {"content": ("See ", image(), " and ", image(2))})

    assert vocabulary.render(Messages(turns)) == "Hello|None|See <__media__> and <__media__>"


def test_a_prompt_is_read_with_its_images(vocabulary, images):
    prompt = Text("a")

    assert vocabulary.encode(prompt, 1, 3) == [Pieces(()), 1, 3]
    assert vocabulary.count(prompt) == 3
    assert images.seen == (prompt,)
