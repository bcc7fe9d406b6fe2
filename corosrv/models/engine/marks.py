"""Marks places in a conversation while a chat template runs, and finds them again in what the template wrote.

`Marks` guards control markers in what a client wrote, so that they stay text; `ImagePlaces` marks where images stand.
The chat templates that libllama has built in are here, too: they are known by their names and run without Jinja.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Image, Messages
from corosrv.models.engine.binding import apply_chat_template, chat_template_names

# 32 code points that Unicode keeps for internal use: they mark places in a conversation while it is rendered.
_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Piece(NamedTuple):
    """Part of a rendered prompt; in `is_text` parts control markers are ordinary text."""

    text: str
    is_text: bool


class Marks(NamedTuple):
    """Three code points that a conversation itself does not use."""

    opening: str  # before a control marker
    closing: str  # behind it
    end: str  # where the answer goes on

    @classmethod
    def free_in(cls, texts: Iterable[str]) -> Marks:
        """Returns marks that none of the texts uses. Raises Refused when they leave no three."""
        return cls(*free_marks(texts, 3))

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Cuts at the marks; those that a template has torn apart are dropped."""
        if self.opening not in rendered and self.closing not in rendered:
            if rendered:
                yield Piece(rendered, is_text=False)
            return
        at = 0
        for marked in re.finditer(f"{self.opening}([^{self.opening}{self.closing}]*){self.closing}", rendered):
            yield from self._piece(rendered[at : marked.start()])
            yield Piece(marked.group(1), is_text=True)
            at = marked.end()
        yield from self._piece(rendered[at:])

    def _piece(self, text: str) -> Iterator[Piece]:
        if clean := text.replace(self.opening, "").replace(self.closing, ""):
            yield Piece(clean, is_text=False)


def free_marks(texts: Iterable[str], count: int) -> list[str]:
    """Returns code points that none of the texts uses. Raises Refused when they leave too few."""
    texts = list(texts)
    if all(map(str.isascii, texts)):
        return _NONCHARACTERS[:count]
    used = {mark for text in texts if not text.isascii() for mark in _NONCHARACTER.findall(text)}
    free = [mark for mark in _NONCHARACTERS if mark not in used] if used else _NONCHARACTERS
    if len(free) < count:
        raise Refused("the messages use up the code points U+FDD0 to U+FDEF", "messages")
    return free[:count]


class Guard:
    """Knows the texts of a model's control tokens."""

    def __init__(self, control_markers: Iterable[str]) -> None:
        markers = sorted((marker for marker in control_markers if marker), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None

    def finds_markers(self, texts: Iterable[str]) -> bool:
        """Tells whether there is a control marker in one of the texts."""
        return self._markers is not None and any(map(self._markers.search, texts))

    def guarded(self, value: Any, marks: Marks) -> Any:
        """Copies `value` with each control marker set between marks, in strings at any depth, names included."""
        if isinstance(value, str):
            return self._guarded_text(value, marks)
        if isinstance(value, dict):
            return {self.guarded(name, marks): self.guarded(member, marks) for name, member in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.guarded(item, marks) for item in value]
        return value

    def _guarded_text(self, text: str, marks: Marks) -> str:
        if self._markers is None:
            return text
        return self._markers.sub(lambda match: marks.opening + match.group() + marks.closing, text)


def strings(value: Any) -> list[str]:
    """Returns all strings in a JSON value, names included."""
    texts = []
    pending = [value]
    for part in pending:  # which grows meanwhile
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            pending += part
            pending += part.values()
        elif isinstance(part, (list, tuple)):
            pending += part
    return texts


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


def builtin_name(source: str) -> str | None:
    """Returns the name of the built-in template that `source` selects; None where it is a template's text."""
    name = source.strip()
    return name if name in chat_template_names() else None


def check_source(source: str) -> None:
    """Raises Refused for a text that is neither a template nor the name of a built-in one."""
    if "{{" in source or "{%" in source or builtin_name(source) is not None:
        return
    raise Refused(
        f"{source.strip()[:80]!r} is neither a Jinja template, which has {{{{ or {{% in it, nor one of the built-in "
        f"templates, which are {', '.join(chat_template_names())}"
    )


class BuiltinTemplate:
    """A template that libllama has built in. It knows roles and contents; tools and calls are written into these."""

    def __init__(self, name: str) -> None:
        self._name = name

    def render(self, messages: list[dict[str, Any]], add_generation_prompt: bool = False, **ignored: Any) -> str:
        """Renders a conversation; other arguments have no meaning to it.

        Raises Refused for a NUL where no other character is left to stand for it.
        """
        texts = [(str(message["role"]), str(message.get("content") or "")) for message in messages]
        if not any("\0" in content for _, content in texts):
            return apply_chat_template(self._name, texts, add_generation_prompt)
        # libllama reads texts up to the first NUL.
        (mark,) = free_marks((content for _, content in texts), 1)
        marked = [(role, content.replace("\0", mark)) for role, content in texts]
        return apply_chat_template(self._name, marked, add_generation_prompt).replace(mark, "\0")
