"""Prompts as completions take them: a text, token ids, both in a row, or a list of such; embedding rows; and a hole.

Rows come as base64 of plain numbers (`prompt_embeds`). A hole is filled between a prefix and a suffix, by a model that
has the tokens for it.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import (
    Image,
    InfillTokens,
    ModelCard,
    MultimodalText,
    Prompt,
    Rows,
    Text,
    Tokens,
    Vocabulary,
)
from corosrv.formats.bodies import check_text, decode_base64
from corosrv.images.intake import MEDIA_MARKER, ImageIntake

# What a field that takes prompts is decoded as; the rest is checked here, because it depends on the values.
PromptField = str | list[Any] | dict[str, Any]

_MEDIA = "multimodal_data"
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


ROWS = "prompt_embeds"
NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # by dtype
_KEYS = {"dtype", "shape", "data"}
_AT_ONCE = 262_144  # characters of base64; more are decoded by call_long
_PIECE = 1 << 16  # bytes, and numbers, between two chances of other threads


def _call_here(function: Callable[..., Rows], *arguments: Any) -> Rows:
    return function(*arguments)


@dataclass(frozen=True, slots=True)
class EmbedsReader:
    """Reads the embedding rows of one request."""

    is_enabled: bool  # by the setting prompt_embeds
    find_card: Callable[[], ModelCard]  # of the model, once it is loaded
    call_long: Callable[..., Rows] = _call_here  # calls what computes for long, as call_in_thread does

    def read(self, value: Any, has_prompt: bool) -> Rows:
        """Checks and decodes the field's value; waits while many rows are decoded. Raises Refused.

        Nothing of the size that the request claims is allocated before it is known to be right.
        """
        if not self.is_enabled:
            raise _bad_rows("not taken by this server: set COROSRV_PROMPT_EMBEDS=1", "disabled")
        if has_prompt:
            raise _bad_rows("send either prompt or prompt_embeds", "and_prompt")
        card = self.find_card()
        if not card.row_width:
            raise _bad_rows("this model takes no embedding rows", "disabled")
        dtype, n, data = _check_head(value, card)
        size = NUMBER_BYTES[dtype] * n * card.row_width
        _check_length(data, size)
        if len(data) <= _AT_ONCE:
            return _decode_rows(data, dtype, card.row_width)
        return self.call_long(_decode_rows, data, dtype, card.row_width)


def _check_head(value: Any, card: ModelCard) -> tuple[str, int, str]:
    """Returns the dtype, the number of rows and the base64 text."""
    if not isinstance(value, dict):
        words = "must be an object with dtype, shape and data; no tensor file of pickle, torch or numpy is read"
        raise _bad_rows(words, "bad_shape")
    if unknown := value.keys() - _KEYS:
        raise _bad_rows(f"has dtype, shape and data, and no {min(unknown)[:40]!r}", "bad_shape")
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in NUMBER_BYTES:
        raise _bad_rows(f"dtype must be one of {', '.join(NUMBER_BYTES)}", "bad_dtype")
    n = _check_shape(value.get("shape"), card)
    data = value.get("data")
    if not isinstance(data, str):
        raise _bad_rows("data must be a string of base64", "bad_base64")
    return dtype, n, data


def _check_shape(shape: Any, card: ModelCard) -> int:
    """Returns the number of rows."""
    if not isinstance(shape, list) or len(shape) != 2 or any(type(extent) is not int for extent in shape):
        raise _bad_rows("shape must be two integers: rows, and numbers of a row", "bad_shape")
    n: int = shape[0]
    width: int = shape[1]
    if n < 1:
        raise _bad_rows("shape: there must be at least one row", "bad_shape")
    if n > card.max_rows:
        raise _bad_rows(f"shape: {n} rows, and the context has room for {card.max_rows}", "too_long")
    if width != card.row_width:
        words = f"shape: a row of this model has {card.row_width} numbers, not {width}"
        raise _bad_rows(words, "bad_shape")
    return n


def _check_length(data: str, size: int) -> None:
    if len(data) % 4:
        raise _not_base64()
    length = len(data) // 4 * 3 - data[-2:].count("=")
    if length != size:
        raise _bad_rows(f"data stands for {length} bytes, and the shape for {size}", "length")


def _decode_rows(data: str, dtype: str, width: int) -> Rows:
    try:
        stored = decode_base64(data)
    except ValueError:
        raise _not_base64() from None
    rows = stored if dtype == "f32" else _widen_halves(stored) if dtype == "f16" else _widen_brains(stored)
    _check_finite(rows)
    return Rows.of_data(rows, width)


def _widen_halves(stored: bytes) -> bytes:
    numbers = array("f")
    for start in range(0, len(stored), _PIECE):
        piece = stored[start : start + _PIECE]
        numbers.extend(struct.unpack(f"<{len(piece) // 2}e", piece))
    return numbers.tobytes()


def _widen_brains(stored: bytes) -> bytes:
    """Puts zeros below bfloat16 numbers, which are the upper halves of float32 numbers."""
    rows = bytearray(2 * len(stored))
    rows[2::4] = stored[0::2]
    rows[3::4] = stored[1::2]
    return bytes(rows)


def _check_finite(rows: bytes) -> None:
    numbers = memoryview(rows).cast("f")
    for start in range(0, len(numbers), _PIECE):
        # A sum of so few float32 numbers is only infinite, or none, where one of them is.
        if not math.isfinite(sum(numbers[start : start + _PIECE])):
            raise _bad_rows("a number in data is infinite or not a number", "not_finite")


def _bad_rows(words: str, code: str) -> Refused:
    """Makes the error for rows that are not as they must be; `code` says in which way."""
    return Refused(f"{ROWS}: {words}", ROWS, f"embeds_{code}")


def _not_base64() -> Refused:
    words = "data must be base64: A-Z, a-z, 0-9, + and /, padded with =, without spaces and line breaks"
    return _bad_rows(words, "bad_base64")


def refuse_with_rows(has_echo: bool, has_suffix: bool) -> None:
    """Raises NotSupported for what only a prompt of text has."""
    if has_echo:
        raise NotSupported("echo: a prompt of embedding rows has no text, and no logprobs", "echo")
    if has_suffix:
        raise NotSupported("suffix: only together with prompts that are strings", "suffix")


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
