"""The formats of a structural tag as clients write them, in both shapes: `structures` with `triggers`, and `format`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused

MAX_PARTS = 256  # tags, triggers or elements in one list
MAX_TEXT = 1024  # characters of a trigger, a begin or an end

TagText = Annotated[str, Meta(max_length=MAX_TEXT)]
Word = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Words = Annotated[list[Word], Meta(min_length=1, max_length=MAX_PARTS)]


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    """One format; its `type` says which."""


class ConstString(_Format, tag="const_string", frozen=True):
    value: str


class SchemaContent(_Format, tag="json_schema", frozen=True):
    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class RegexContent(_Format, tag="regex", frozen=True):
    pattern: str


class AnyText(_Format, tag="any_text", frozen=True):
    excludes: Annotated[list[Word], Meta(max_length=MAX_PARTS)] = []


class SequenceFormat(_Format, tag="sequence", frozen=True):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_PARTS)]


class OrFormat(_Format, tag="or", frozen=True):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_PARTS)]


class TagFormat(_Format, tag="tag", frozen=True):
    begin: TagText
    content: Format
    end: TagText | Annotated[list[Word], Meta(min_length=1, max_length=MAX_PARTS)]


Tags = Annotated[list[TagFormat], Meta(min_length=1, max_length=MAX_PARTS)]


class TriggeredTags(_Format, tag="triggered_tags", frozen=True):
    triggers: Words
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: Annotated[list[Word], Meta(max_length=MAX_PARTS)] = []


class TagsWithSeparator(_Format, tag="tags_with_separator", frozen=True):
    tags: Tags
    separator: TagText
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | SchemaContent
    | RegexContent
    | AnyText
    | SequenceFormat
    | OrFormat
    | TagFormat
    | TriggeredTags
    | TagsWithSeparator
)
TYPES = (
    "const_string", "json_schema", "regex", "any_text", "sequence", "or", "tag", "triggered_tags",
    "tags_with_separator",
)  # fmt: skip


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tag of the older shape."""

    begin: TagText
    schema: dict[str, Any] | bool
    end: Word


class StructuralTag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either shape: `structures` and `triggers`, or a `format`."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: Annotated[list[Structure], Meta(min_length=1, max_length=MAX_PARTS)] | None = None
    triggers: Words | None = None
    format: Format | None = None


def read_tag(value: Any, param: str) -> StructuralTag:
    """Reads a structural tag, which may also be written as a string of JSON. Raises Refused, which names the place."""
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        tag = msgspec.convert(value, StructuralTag)
    except RecursionError:
        raise Refused(f"{param}: the formats stand too deep in each other", param) from None
    except msgspec.MsgspecError as error:
        words, _, place = str(error).partition(" - at `$")
        if words.startswith("Invalid value ") and place.rstrip("`").endswith(".type"):
            words += f"; offered here are {', '.join(TYPES)}"
        raise Refused(f"{param}{place.rstrip('`')}: {words}", param + place.rstrip("`")) from None
    is_old = tag.structures is not None and tag.triggers is not None
    if is_old == (tag.format is not None) or (tag.structures is None) != (tag.triggers is None):
        raise Refused(f"{param} takes `structures` and `triggers`, or a `format`", param)
    return tag
