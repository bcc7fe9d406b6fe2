"""Prompts of texts and images, with rows and tokens in place of them."""

from typing import Any

import pytest

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import Image, Messages, MultimodalText, Pieces, Rows, Terms, Text, Tokens
from corosrv.images.vision.engine import ImagePrompts, has_images
from corosrv.images.vision.task import EncodedImage, ImageTask
from tests.images.vision.encoders import NobodyLeaves, image

CONTEXT = 20  # tokens
ROWS = {seed: Rows.of_data(bytes([seed] * 8), 2) for seed in (1, 2)}
BEFORE, AFTER = Tokens((90,)), Tokens((91, 92))  # what this encoder puts around rows


class PartsVocabulary:
    """Reads each letter as a token."""

    def parts(self, prompt: Any, number: int, n_prompts: int) -> list[Tokens | Image]:
        self.read = (*getattr(self, "read", ()), (number, n_prompts))
        return [part if isinstance(part, Image) else Tokens(tuple(part.encode())) for part in prompt.parts]

    def check_room(self, n_tokens: int, prompt: Any, number: int, n_prompts: int) -> None:
        if n_tokens >= CONTEXT:
            raise PromptTooLong(n_tokens, CONTEXT, f"prompt[{number}]")


class ImmediateEncoder:
    """Has the rows of each image at once."""

    def __init__(self, encoded: dict[str, EncodedImage]) -> None:
        self.encoded = encoded
        self.joined: list[str] = []

    def n_tokens(self, image: Image, wake: Any) -> int:
        return sum(
            len(piece.ids) if isinstance(piece, Tokens) else piece.n for piece in self.encoded[image.sha256].pieces
        )

    def join(self, image: Image, caller: str, wake: Any) -> ImageTask:
        self.joined.append(image.sha256)
        task = ImageTask((caller, image.sha256), image, 0.0)
        task.end(self.encoded[image.sha256])
        return task

    def leave(self, task: ImageTask, wake: Any) -> None:
        pass


@pytest.fixture
def images() -> dict[int, Image]:
    return {seed: image(seed) for seed in ROWS}


@pytest.fixture
def encoder(images) -> ImmediateEncoder:
    return ImmediateEncoder(
        {images[seed].sha256: EncodedImage((BEFORE, rows, AFTER)) for seed, rows in ROWS.items()}
    )  # fmt: skip


def read(encoder, *prompts):
    vocabulary = PartsVocabulary()
    return ImagePrompts(vocabulary, encoder, NobodyLeaves).read(prompts, Terms()), vocabulary


def test_tokens_around_rows_join_those_of_the_text(encoder, images):
    (prompt,), _ = read(encoder, MultimodalText(("ab", images[1], "c", images[2], images[1])))

    assert prompt == Pieces(
        (
            Tokens((*b"ab", 90)),
            ROWS[1],
            Tokens((91, 92, *b"c", 90)),
            ROWS[2],
            Tokens((91, 92, 90)),
            ROWS[1],
            Tokens((91, 92)),
        )
    )
    assert len(encoder.joined) == 2


def test_prompts_without_images_stay_as_they_are_and_others_are_read_with_their_number(encoder, images):
    text, messages = Text("a"), Messages(({"role": "user", "content": "b"},))

    prompts, vocabulary = read(encoder, text, MultimodalText((images[1],)), messages)

    assert prompts[0] is text
    assert prompts[2] is messages
    assert prompts[1] == Pieces((BEFORE, ROWS[1], AFTER))
    assert vocabulary.read == ((1, 3),)


@pytest.mark.parametrize(("n_letters", "is_refused"), [(11, False), (12, True)])
def test_a_prompt_that_does_not_fit_with_its_images_has_none_of_them_encoded(encoder, images, n_letters, is_refused):
    prompt = MultimodalText(("a" * n_letters, images[1], images[2]))

    if is_refused:
        with pytest.raises(PromptTooLong, match="20 tokens"):
            read(encoder, MultimodalText((images[1],)), prompt)
        assert encoder.joined == []
    else:
        assert read(encoder, prompt)[0]
        assert len(encoder.joined) == 2


def test_images_stand_in_messages_with_parts_and_in_texts_that_have_some(images):
    assert has_images(Messages(({"role": "system"}, {"role": "user", "content": ("a", images[1])})))
    assert has_images(MultimodalText((images[1],)))
    assert not has_images(Messages(({"role": "user", "content": "a"}, {"role": "assistant"})))
    assert not has_images(Text("a"))
    assert not has_images(Tokens((1,)))
