"""Prompts with images: text before, between and behind them, as tokens."""

import pytest

from corosrv.base.errors import PromptTooLong, Refused
from corosrv.contracts.jobs import Image, Messages, MultimodalText, Tokens
from corosrv.models.engine.marks import ImagePlaces, Piece
from tests.support.engines import opened
from tests.support.gguf import write_llama

ONE, TWO = (Image.of_pixels(1, 1, bytes([shade] * 3)) for shade in (1, 2))
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}<|im_end|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return str(write_llama(path, special=["<|im_start|>", "<|im_end|>"]))


@pytest.fixture(scope="module")
def vocabulary(model):
    with opened(model=model, slots=1, chat_template=TEMPLATE) as engine:
        yield engine.vocabulary(None)


def conversation(*contents) -> Messages:
    return Messages(tuple({"role": "user", "content": content} for content in contents))


def spelled(vocabulary, parts) -> list[str | Image]:
    """The parts with texts in place of token ids, without spaces: the tokenizer puts some of its own."""
    return [
        part if isinstance(part, Image) else vocabulary.spell(part.ids).decode().replace("\u2581", "") for part in parts
    ]


def test_images_stand_where_the_conversation_has_them(vocabulary):
    prompt = conversation(("one:", ONE, "two:", TWO), "none")

    parts = vocabulary.parts(prompt)

    assert spelled(vocabulary, parts) == [
        "<s><|im_start|>one:",
        ONE,
        "two:",
        TWO,
        "<|im_start|>none<|im_end|>",
    ]


def test_words_of_a_user_that_look_like_a_place_are_text(vocabulary):
    word = "image" + 16 * "a0"

    parts = vocabulary.parts(conversation((word, ONE, word)))

    assert spelled(vocabulary, parts) == [f"<s><|im_start|>{word}", ONE, f"{word}<|im_end|>"]


def test_the_text_of_an_image_prompt_has_the_tokens_of_the_same_text_alone(vocabulary):
    with_image = vocabulary.parts(conversation(("Hello", ONE)))

    alone = vocabulary.encode(conversation("Hello"))

    assert with_image[0].ids + with_image[2].ids == tuple(alone)


def test_the_same_image_twice_stands_twice(vocabulary):
    parts = vocabulary.parts(conversation((ONE, ONE)))

    assert [part for part in parts if isinstance(part, Image)] == [ONE, ONE]


def test_markers_that_a_user_writes_around_an_image_stay_text(vocabulary):
    parts = vocabulary.parts(conversation(("<|im_end|>", ONE, "<|im_", TWO, "end|>")))

    (end,) = vocabulary.tokenize("<|im_end|>", False, True)
    ids = [token for part in parts if isinstance(part, Tokens) for token in part.ids]
    assert ids.count(end) == 1  # the template's own


def test_a_text_with_images_begins_a_sequence_also_if_an_image_comes_first(vocabulary):
    parts = vocabulary.parts(MultimodalText((ONE, "behind")))

    assert spelled(vocabulary, parts) == ["<s>", ONE, "behind"]


def test_control_markers_of_a_text_are_control_tokens(vocabulary):
    parts = vocabulary.parts(MultimodalText(("<|im_start|>", ONE)))

    assert parts[0] == Tokens(tuple(vocabulary.tokenize("<|im_start|>", True, True)))


def test_a_text_that_does_not_fit_is_refused_before_its_images_are_encoded(vocabulary):
    with pytest.raises(PromptTooLong):
        vocabulary.parts(MultimodalText(("x" * 1000, ONE)))


def test_images_stand_in_templates_that_read_parts_alone(model):
    template = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
    with opened(model=model, slots=1, chat_template=template) as engine:
        vocabulary = engine.vocabulary(None)

        parts = vocabulary.parts(conversation(("before", ONE, "behind")))

        assert spelled(vocabulary, parts) == ["<s>before", ONE, "behind"]


def test_a_template_that_leaves_out_an_image_is_refused(model):
    with opened(model=model, slots=1, chat_template="{{ messages[0].content }}") as engine:
        vocabulary = engine.vocabulary(None)

        with pytest.raises(Refused, match="leaves out an image"):
            vocabulary.parts(conversation("first", ("second", ONE)))


def test_no_two_places_have_the_same_word():
    places = ImagePlaces()

    marked = places.mark(conversation((ONE, " ", ONE))).messages[0]["content"]

    first, second = marked.split(" ")
    assert first != second
    assert len(first) > 32
    assert places.split([Piece(marked, is_text=False)], "messages") == [[], ONE, [Piece(" ", False)], ONE, []]
