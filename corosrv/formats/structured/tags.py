"""Structural tags: free text until a trigger, and the tag that begins there has content of a form.

Clients write them in two shapes, `structures` with `triggers`, or one `format`. `read_tag` reads both; `tag_rules`
converts them to rules of a grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.formats.structured.gbnf import NOTHING, Rules, either, literal, sequence
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.pattern import pattern_rules
from corosrv.formats.structured.watched import WordOverlap, watched_text

MAX_PARTS = 256  # tags, triggers or elements in one list
MAX_TEXT = 1024  # characters of a trigger, a begin or an end

TagText = Annotated[str, Meta(max_length=MAX_TEXT)]
Word = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Words = Annotated[list[Word], Meta(min_length=1, max_length=MAX_PARTS)]


class _FormatBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    """One format; its `type` says which."""


class ConstString(_FormatBase, tag="const_string", frozen=True):
    value: str


class SchemaContent(_FormatBase, tag="json_schema", frozen=True):
    json_schema: dict[str, Any] | bool
    style: Literal["json"] = "json"


class RegexContent(_FormatBase, tag="regex", frozen=True):
    pattern: str


class AnyText(_FormatBase, tag="any_text", frozen=True):
    excludes: Annotated[list[Word], Meta(max_length=MAX_PARTS)] = []


class SequenceFormat(_FormatBase, tag="sequence", frozen=True):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_PARTS)]


class OrFormat(_FormatBase, tag="or", frozen=True):
    elements: Annotated[list[Format], Meta(min_length=1, max_length=MAX_PARTS)]


class TagFormat(_FormatBase, tag="tag", frozen=True):
    begin: TagText
    content: Format
    end: TagText | Annotated[list[Word], Meta(min_length=1, max_length=MAX_PARTS)]


Tags = Annotated[list[TagFormat], Meta(min_length=1, max_length=MAX_PARTS)]


class TriggeredTags(_FormatBase, tag="triggered_tags", frozen=True):
    triggers: Words
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: Annotated[list[Word], Meta(max_length=MAX_PARTS)] = []


class TagsWithSeparator(_FormatBase, tag="tags_with_separator", frozen=True):
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
        raise Refused(f"{param}: the formats are nested too deep", param) from None
    except msgspec.MsgspecError as error:
        words, _, place = str(error).partition(" - at `$")
        if words.startswith("Invalid value ") and place.rstrip("`").endswith(".type"):
            words += f"; offered here are {', '.join(TYPES)}"
        raise Refused(f"{param}{place.rstrip('`')}: {words}", param + place.rstrip("`")) from None
    is_old = tag.structures is not None and tag.triggers is not None
    if is_old == (tag.format is not None) or (tag.structures is None) != (tag.triggers is None):
        raise Refused(f"{param} takes `structures` and `triggers`, or a `format`", param)
    return tag


# What ends a format: one of these texts, the end of the answer where there are none, or (None) what the form says next.
Ends = tuple[str, ...] | None
_CONTENT = ".content"  # where that of a tag stands in it
SchemaRules = Callable[[dict[str, Any] | bool, str, str], Rules]
_SHORT = 64  # characters; a longer form gets a rule, so that no text is copied into form after form around it


def tag_rules(
    tag: StructuralTag, param: str, prefix: str, limits: SchemaLimits, effort: Effort, of_schema: SchemaRules
) -> Rules:
    """Returns rules for the answers that a structural tag describes. Raises Refused, which names `param` and the place.

    `of_schema` makes the rules of a JSON schema, of the field where it stands and a prefix. Waits where `effort` does.
    """
    return _TagWriter(prefix, limits, effort, of_schema).rules(tag, param)


class _TagWriter:
    """Collects the rules of one structural tag, and counts them."""

    def __init__(self, prefix: str, limits: SchemaLimits, effort: Effort, of_schema: SchemaRules) -> None:
        self._prefix = prefix
        self._limits = limits
        self._effort = effort
        self._of_schema = of_schema
        self._bodies: dict[str, str] = {}
        self._closings: dict[Ends, str] = {}
        self._n_bytes = 0
        self._n_names = 0
        self._n_watched = 0  # letters

    def rules(self, tag: StructuralTag, param: str) -> Rules:
        if tag.format is not None:
            item = self._write(tag.format, (), f"{param}.format", 0)
        else:
            of_schema = self._of_schema
            place = f"{_CONTENT}.json_schema"
            self._of_schema = lambda schema, at, name: of_schema(schema, at.replace(place, ".schema"), name)
            item = self._triggered(_as_format(tag), (), param, "structures", 0)
        start = self._rule(item or NOTHING, param)
        return Rules(start, {start: self._bodies[start], **self._bodies})

    def _name(self) -> str:
        self._n_names += 1
        return f"{self._prefix}-tag{self._n_names}"

    def _define(self, name: str, body: str, param: str) -> None:
        self._bodies[name] = body
        self._n_bytes += len(name) + len(body.encode()) + len(" ::= \n")
        self._check(param)

    def _check(self, param: str, n_more: int = 0) -> None:
        """Raises Refused if the grammar is too large, to which so many rules are to come, or took too long. Waits."""
        self._effort.check(param)
        if self._n_bytes > self._limits.grammar_bytes or len(self._bodies) + n_more > self._limits.rules:
            raise self._too_large(param)

    def _rule(self, body: str, param: str) -> str:
        name = self._name()
        self._define(name, body, param)
        return name

    def _too_large(self, param: str) -> Refused:
        return Refused(f"{param}: the tags together are too large: ask for fewer or simpler ones", param)

    def _literal(self, text: str, param: str) -> str:
        if len(text) > self._limits.grammar_bytes:
            raise self._too_large(param)
        return literal(text) if text else ""

    def _write(self, form: Format, ends: Ends, param: str, depth: int) -> str:
        """Writes a format together with what ends it."""
        if depth > self._limits.depth:
            raise Refused(f"{param}: the formats are nested too deep", param)
        self._effort.check(param)
        written = self._with_end(form, ends, param, depth)
        return written if len(written) <= _SHORT else self._rule(written, param)

    def _with_end(self, form: Format, ends: Ends, param: str, depth: int) -> str:
        if isinstance(form, AnyText):
            return self._watched({}, form.excludes, ends, param)
        if isinstance(form, TriggeredTags):
            return self._triggered(form, ends, param, "tags", depth)
        if isinstance(form, SequenceFormat):
            *first, last = enumerate(form.elements)
            items = [self._write(element, None, f"{param}.elements[{n}]", depth + 1) for n, element in first]
            return sequence(*items, self._write(last[1], ends, f"{param}.elements[{last[0]}]", depth + 1))
        if isinstance(form, OrFormat):
            elements = enumerate(form.elements)
            branches = [self._write(element, ends, f"{param}.elements[{n}]", depth + 1) for n, element in elements]
            return either(branch or NOTHING for branch in branches)
        if isinstance(form, TagFormat):
            return sequence(self._literal(form.begin, param), self._after_begin(form, ends, param, depth))
        return sequence(self._closed(form, param, depth), self._closing(ends, param))

    def _closed(self, form: Format, param: str, depth: int) -> str:
        """Writes a format that comes to an end by itself."""
        if isinstance(form, ConstString):
            return self._literal(form.value, f"{param}.value")
        if isinstance(form, SchemaContent):
            rules = self._of_schema(form.json_schema, f"{param}.json_schema", self._name())
        elif isinstance(form, RegexContent):
            rules = pattern_rules(form.pattern, f"{param}.pattern", self._name(), self._limits, self._effort)
        else:
            assert isinstance(form, TagsWithSeparator)
            return self._separated(form, param, depth)
        for name, body in rules.bodies.items():
            self._define(name, body, param)
        return rules.start

    def _after_begin(self, tag: TagFormat, ends: Ends, param: str, depth: int) -> str:
        """Writes what follows the begin of a tag: content, its end, and what ends the tag."""
        place = param + _CONTENT
        if tag.end == "":
            return self._write(tag.content, ends, place, depth + 1)
        own = (tag.end,) if isinstance(tag.end, str) else tuple(tag.end)
        return sequence(self._write(tag.content, own, place, depth + 1), self._closing(ends, param))

    def _closing(self, ends: Ends, param: str) -> str:
        """Writes the ends, by a rule where they are long: they may stand behind each part of a format."""
        if not ends:
            return ""
        if ends not in self._closings:
            written = either(map(literal, ends))
            self._closings[ends] = written if len(written) <= _SHORT else self._rule(written, param)
        return self._closings[ends]

    def _separated(self, form: TagsWithSeparator, param: str, depth: int) -> str:
        tags = [self._write(tag, None, f"{param}.tags[{n}]", depth + 1) for n, tag in enumerate(form.tags)]
        name = self._rule(either(tags), param)
        more = "" if form.stop_after_first else f"({sequence(self._literal(form.separator, param), name)})*"
        several = sequence(name, more)
        return several if form.at_least_one else f"({several})?"

    def _triggered(self, form: TriggeredTags, ends: Ends, param: str, places: str, depth: int) -> str:
        """Writes free text with tags in it; `places` is the list's name in the request."""
        of_tag: dict[int, str] = {}
        triggers = _shortest(form.triggers)
        for number, tag in enumerate(form.tags):
            place = f"{param}.{places}[{number}]"
            if not tag.begin.startswith(tuple(triggers)):
                raise Refused(f"{place}.begin: no trigger begins it", f"{place}.begin")
            of_tag[number] = self._rule(self._after_begin(tag, None, place, depth + 1) or NOTHING, place)
        after = self._name() if not form.stop_after_first else ""
        items: dict[str, str | None] = {}
        for trigger in triggers:
            begun = [
                sequence(self._literal(tag.begin[len(trigger) :], param), of_tag[n])
                for n, tag in enumerate(form.tags)
                if tag.begin.startswith(trigger)
            ]
            if not begun:
                raise Refused(f"{param}.triggers: no tag begins with {trigger[:64]!r}", f"{param}.triggers")
            items[trigger] = self._rule(sequence(either(begun), after or self._closing(ends, param)), param)
        first = [sequence(self._literal(tag.begin, param), of_tag[n]) for n, tag in enumerate(form.tags)]
        if form.at_least_one and form.stop_after_first:
            return sequence(either(first), self._closing(ends, param))
        free = self._watched(items, form.excludes, ends, param)
        if after:
            self._define(after, free, param)
        return sequence(either(first), after) if form.at_least_one else free

    def _watched(self, words: dict[str, str | None], excludes: Sequence[str], ends: Ends, param: str) -> str:
        """Writes free text in which words are followed by their items, up to one of the ends."""
        if ends is None:
            problem = "free text has to be last, or in a tag with an end: nothing else tells where it ends"
            raise Refused(f"{param}: {problem}", param)
        watched = {**dict.fromkeys(excludes), **words, **dict.fromkeys(ends, NOTHING)}
        if len(watched) < len(set(excludes)) + len(words) + len(set(ends)):
            raise Refused(f"{param}: a trigger, an end and what is excluded have to differ", param)
        self._n_watched += sum(map(len, watched))
        if self._n_watched > self._limits.watched_chars:
            problem = f"triggers, ends and what is excluded have over {self._limits.watched_chars} characters together"
            raise Refused(f"{param}: {problem}; ask for fewer or shorter ones", param)
        rules = watched_text(watched, self._name(), not ends, lambda n_rules: self._check(param, n_rules))
        try:
            start, body = next(rules)
            self._define(start, body, param)
            for name, body in rules:
                self._define(name, body, param)
        except WordOverlap as error:
            word, other = error.args
            problem = f"{word[:64]!r} stands within {other[:64]!r}, which could never be complete"
            raise Refused(f"{param}: {problem}", param) from None
        return start


def _as_format(tag: StructuralTag) -> TriggeredTags:
    """Returns the newer shape of the older one."""
    assert tag.structures is not None
    assert tag.triggers is not None
    tags = [
        TagFormat(begin=structure.begin, content=SchemaContent(json_schema=structure.schema), end=structure.end)
        for structure in tag.structures
    ]
    return TriggeredTags(triggers=tag.triggers, tags=tags)


def _shortest(triggers: Sequence[str]) -> list[str]:
    """Leaves out triggers that begin with another, which is complete before them and stands for their tags as well."""
    shortest: list[str] = []
    for trigger in sorted(triggers):  # those that begin with one stand behind it
        if not (shortest and trigger.startswith(shortest[-1])):
            shortest.append(trigger)
    return shortest
