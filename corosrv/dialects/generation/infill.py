"""Prompts for the text that is missing between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corosrv.contracts.jobs import InfillTokens, Tokens, Vocabulary
from corosrv.formats.bodies import check_text

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
