"""Prompts as completions take them: a text, token ids, both in a row, or a list of such; and a text with a hole.

A hole is filled between a prefix and a suffix, by a model that has the tokens for it. A prompt that no template made
may have begun thoughts: `with_budget` limits them, by the tags that stand around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import (
    Image,
    InfillTokens,
    Job,
    ModelCard,
    MultimodalText,
    Prompt,
    Text,
    ThoughtBudget,
    Tokens,
    Vocabulary,
)
from corosrv.dialects.generation.fields import ThoughtFields, budget_name, thought_message, thought_tokens
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake

# What a field that takes prompts is decoded as; the rest is checked here, because it depends on the values.
PromptField = str | list[Any] | dict[str, Any]

_MEDIA = "multimodal_data"
MEDIA_MARKER = "<__media__>"  # what stands in a text for an image of `multimodal_data`, as libmtmd has it
_MOST_TEXTS = 1024  # among the token ids of one prompt


def prompts(
    value: PromptField, param: str, most: int, vocabulary: Vocabulary, images: ImageIntake | None = None
) -> tuple[Prompt, ...]:
    """Reads one prompt, or at most `most` of them. May wait as `tokenize` does, and for images.

    `images` is None where the model takes none. Raises Refused, which names the place.
    """
    if not is_several(value):
        return (_prompt(value, param, vocabulary, images),)
    if not value:
        raise Refused(f"{param} must not be an empty list", param)
    if len(value) > most:
        raise Refused(f"{param}: at most {most} in one request, not {len(value)}", param)
    return tuple(_prompt(prompt, f"{param}[{i}]", vocabulary, images) for i, prompt in enumerate(value))


def is_several(value: PromptField) -> bool:
    """Tells whether a value is a list of prompts: a token id among its members makes it one prompt in pieces."""
    return isinstance(value, list) and not any(type(member) is int for member in value)


def _prompt(value: Any, param: str, vocabulary: Vocabulary, images: ImageIntake | None) -> Prompt:
    if isinstance(value, dict):
        return _of_object(value, param, images)
    if isinstance(value, str):
        return Text(check_text(value, param))
    if isinstance(value, list) and value:
        if all(type(member) is int for member in value):
            return Tokens(tuple(value))
        return Tokens(tuple(_joined(value, param, vocabulary)))
    raise Refused(f"{param} must be a string, a list of token ids and strings, or an object with prompt_string", param)


def _of_object(value: dict[str, Any], param: str, images: ImageIntake | None) -> Prompt:
    """Reads llama-server's forms, which have room for pictures and sounds."""
    if value.get(_MEDIA) not in (None, []):
        if images is not None:
            return _with_images(value, param, images)
        raise NotSupported(f"{param}.{_MEDIA}: this model reads text only", f"{param}.{_MEDIA}", "unsupported_content")
    if isinstance(parts := value.get("content"), list):
        return Text("".join(_part(part, f"{param}.content[{i}]") for i, part in enumerate(parts)))
    return Text(_prompt_string(value, param))


def _prompt_string(value: dict[str, Any], param: str) -> str:
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise Refused(f"{param}.prompt_string must be a string", f"{param}.prompt_string")
    return check_text(text, f"{param}.prompt_string")


def _with_images(value: dict[str, Any], param: str, images: ImageIntake) -> MultimodalText:
    place, media = f"{param}.{_MEDIA}", value[_MEDIA]
    if not isinstance(media, list) or not all(isinstance(data, str) for data in media):
        raise Refused(f"{place} must be a list of images as base64", place)
    return with_images(_prompt_string(value, param), media, images, place)


def with_images(text: str, media: Sequence[str], images: ImageIntake, param: str) -> MultimodalText:
    """Puts images, as base64, where a text has their markers. Waits. Raises Refused unless there is one for each."""
    texts = text.split(MEDIA_MARKER)
    if len(texts) - 1 != len(media):
        words = f"{len(media)} images, and the text has {MEDIA_MARKER} {len(texts) - 1} times"
        raise Refused(f"{param}: {words}", param)
    images.expect(len(media), param)
    parts: list[str | Image] = [texts[0]]
    for i, (data, following) in enumerate(zip(media, texts[1:], strict=True)):
        parts += [images.from_base64(data, f"{param}[{i}]"), following]
    return MultimodalText(tuple(part for part in parts if part))


def _part(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise NotSupported(f"{param}: this model reads parts of type 'text' only", param, "unsupported_content")
    if not isinstance(part.get("text"), str):
        raise Refused(f"{param}.text must be a string", f"{param}.text")
    return check_text(part["text"], f"{param}.text")


def _joined(pieces: Sequence[Any], param: str, vocabulary: Vocabulary) -> list[int]:
    """Returns the tokens of ids and texts in a row."""
    tokens: list[int] = []
    turns = Turns()
    n_texts = 0
    for place, piece in enumerate(pieces):
        turns.give_way()
        if type(piece) is int:
            tokens.append(piece)
        elif isinstance(piece, str):
            n_texts += 1
            if n_texts > _MOST_TEXTS:
                raise Refused(f"{param}: at most {_MOST_TEXTS} texts in one prompt", param)
            text = check_text(piece, f"{param}[{place}]")
            tokens += vocabulary.tokenize(text, add_special=place == 0, parse_special=True, param=param)
        else:
            raise Refused(f"{param}[{place}] must be a token id or a string", f"{param}[{place}]")
    return tokens


# What the pattern of a repository asks for, and nobody tells us.
_REPOSITORY_NAME = "myproject"
_FILE_NAME = "filename"
# Between files, for models that know no token for it.
_SNIPPET = "\n\n--- snippet ---\n\n"

Read = Callable[[str, str], list[int]]


@dataclass(frozen=True, slots=True)
class Hole:
    """A text with something missing: what stands before and behind it, and how it begins if that is known."""

    prefix: str
    suffix: str
    middle: str = ""
    other_files: tuple[tuple[str, str], ...] = ()  # other files of the repository: name and text


def prompt(hole: Hole, marks: InfillTokens, vocabulary: Vocabulary, params: Sequence[str]) -> Tokens:
    """Makes the prompt that asks a model to fill the hole, in llama-server's order. Markers in the texts stay text.

    `params` name prefix, suffix, middle and other files for errors. May wait as `tokenize` does; raises Refused.
    """

    def read(text: str, param: str) -> list[int]:
        return vocabulary.tokenize(check_text(text, param), add_special=False, parse_special=False, param=param)

    of_prefix, of_suffix, of_middle, of_others = params
    begin = vocabulary.tokenize("", add_special=True, parse_special=False)
    return Tokens(
        (
            *begin, *_repository(hole, marks, read, of_others), marks.prefix, *read(hole.prefix, of_prefix),
            marks.suffix, *read(hole.suffix, of_suffix), marks.middle, *read(hole.middle, of_middle),
        )
    )  # fmt: skip


def _repository(hole: Hole, marks: InfillTokens, read: Read, param: str) -> list[int]:
    tokens: list[int] = []
    if marks.repository >= 0:
        tokens += [marks.repository, *read(f"{_REPOSITORY_NAME}\n", param)]
    for name, text in hole.other_files:
        head = [marks.file, *read(f"{name}\n", param)] if marks.file >= 0 else read(_SNIPPET, param)
        tokens += [*head, *read(text, param)]
    if marks.file >= 0:
        tokens += [marks.file, *read(f"{_FILE_NAME}\n", param)]
    return tokens


MAX_TAG = 256  # characters
MAX_TAGS = 16

ThoughtTag = Annotated[str, Meta(max_length=MAX_TAG)]

_END_TAGS = ("reasoning_budget_end_tags", "reasoning_budget_end_tag")


class TaggedThoughtFields(ThoughtFields, kw_only=True):
    """The same for prompts that no template made: llama-server's clients say what stands around the thoughts."""

    reasoning_budget_start_tag: ThoughtTag | None = None
    reasoning_budget_end_tag: ThoughtTag | None = None
    reasoning_budget_end_tags: Annotated[list[ThoughtTag], Meta(max_length=MAX_TAGS)] | None = None


def with_budget(job: Job, fields: ThoughtFields, card: ModelCard, vocabulary: Vocabulary) -> Job:
    """Limits the thoughts of a job whose prompts are raw: they begin in the prompt, or the answer begins with them.

    The tags are the request's, or those of the model; of a model that has none, nothing is a thought. May wait as
    `tokenize` does. Raises Refused.
    """
    tokens, tags = thought_tokens(fields), _tags(fields) or card.reasoning_tags
    if tokens is None or tags is None:
        return job
    opening, closing = tags
    begun = {_ends_in_thoughts(prompt, opening, closing, vocabulary) for prompt in job.prompts}
    if len(begun) > 1:
        words = "some of the prompts begin thoughts and others do not: send them apart"
        raise Refused(f"{budget_name(fields)}: {words}", budget_name(fields))
    message = thought_message(fields)
    message = card.thought_message if message is None else message
    budget = ThoughtBudget(tokens, closing, "" if begun == {True} else opening, message)
    return replace(job, sampling=replace(job.sampling, thoughts=budget))


def _tags(fields: ThoughtFields) -> tuple[str, str] | None:
    """Returns what the request says stands around thoughts; None where it does not say."""
    if not isinstance(fields, TaggedThoughtFields):
        return None
    start, ends = fields.reasoning_budget_start_tag or "", _end_tags(fields)
    if not start and not ends:
        return None
    if not start or not ends:
        name = _END_TAGS[0] if start else "reasoning_budget_start_tag"
        raise Refused(f"{name}: the tags that begin and end thoughts are sent together", name)
    return check_text(start, "reasoning_budget_start_tag"), check_text(ends[0], _END_TAGS[0])


def _end_tags(fields: TaggedThoughtFields) -> Sequence[str]:
    tags = fields.reasoning_budget_end_tags
    if tags is None:
        tags = [fields.reasoning_budget_end_tag or ""]
    tags = list(dict.fromkeys(tag for tag in tags if tag))
    if len(tags) > 1:
        raise NotSupported(f"{_END_TAGS[0]}: thoughts end with one tag here, not with {len(tags)}", _END_TAGS[0])
    return tags


def _ends_in_thoughts(prompt: Prompt, opening: str, closing: str, vocabulary: Vocabulary) -> bool:
    text = _text_of(prompt, vocabulary)
    return text.rfind(opening) > text.rfind(closing)


def _text_of(prompt: Prompt, vocabulary: Vocabulary) -> str:
    if isinstance(prompt, Text):
        return prompt.text
    if isinstance(prompt, Tokens):
        return vocabulary.spell(prompt.ids).decode("utf-8", "replace")
    if isinstance(prompt, MultimodalText):
        return "".join(part for part in prompt.parts if isinstance(part, str))
    return ""  # embedding rows
