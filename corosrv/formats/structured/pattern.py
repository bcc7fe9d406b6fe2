"""Parses regular expressions to trees, and converts them and lists of texts to GBNF.

The dialect is what ECMAScript and Python have in common. Where the two differ in what a class holds (is a letter with
an accent a word character?), it holds here what both agree on.
"""

from __future__ import annotations

from collections.abc import Sequence as Texts
from dataclasses import dataclass, field

from corosrv.base.errors import Refused
from corosrv.formats.structured.gbnf import ANY, Chars, Range, Rules, char_set, either, literal, sequence
from corosrv.formats.structured.gbnf import NOTHING as NO_TEXT
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.pattern_tree import (
    NOTHING,
    Alternatives,
    Character,
    Edge,
    Node,
    PatternError,
    Repeat,
    Sequence,
    repeat,
)
from corosrv.formats.structured.rule_book import RuleBook

_DIGITS = Chars.from_ranges([(ord("0"), ord("9"))])
_WORD = Chars.from_ranges([(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("a"), ord("z")), (ord("_"), ord("_"))])
_SPACE = Chars.from_ranges([(0x09, 0x0D), (0x20, 0x20)])
_ASCII = Chars(((0, 0x7F),))
_SPACE_IN_ANY_DIALECT = _SPACE | Chars.from_ranges(
    [(0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
_LINE_ENDS = Chars.from_ranges([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
_IN_A_LINE = ANY & ~_LINE_ENDS
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
# What a class holds for certain, and what it may hold in some dialect.
_CLASSES = {
    "d": (_DIGITS, _DIGITS | ~_ASCII),
    "D": (_ASCII & ~_DIGITS, ~_DIGITS),
    "w": (_WORD, _WORD | ~_ASCII),
    "W": (_ASCII & ~_WORD, ~_WORD),
    "s": (_SPACE, _SPACE_IN_ANY_DIALECT),
    "S": (ANY & ~_SPACE_IN_ANY_DIALECT, ~_SPACE),
}
_REFUSED_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?P=": "back-references",
    "(?(": "conditional groups",
    "(?>": "atomic groups",
    "(?#": "comments",
}
_REFUSED_ESCAPES = {
    **dict.fromkeys("123456789k", "back-references"),
    **dict.fromkeys("bB", "word boundaries"),
    **dict.fromkeys("pP", "Unicode properties"),
    **dict.fromkeys("AzZG", "anchors other than ^ and $"),
}
_PAD = 64  # characters before and after what a pattern without anchors asks for


@dataclass
class _PatternParser:
    """Parses by recursive descent, as deep as the limits allow."""

    text: str
    limits: SchemaLimits
    position: int = 0
    depth: int = 0
    n_edges: int = field(default=0)

    def parse(self) -> Node:
        node = self.choice()
        if self.position < len(self.text):
            raise self.error("unbalanced ')'")
        return node

    def error(self, problem: str, position: int | None = None) -> PatternError:
        return PatternError(f"{problem} at character {(self.position if position is None else position) + 1}")

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def skip(self, expected: str) -> bool:
        is_next = self.text.startswith(expected, self.position)
        self.position += len(expected) if is_next else 0
        return is_next

    def choice(self) -> Node:
        branches = [self.sequence()]
        while self.skip("|"):
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def sequence(self) -> Node:
        items: list[Node] = []
        size = 0
        while self.peek() not in ("", "|", ")"):
            item = self.repeated(self.item())
            size += item.size
            if size > self.limits.pattern_size:
                raise PatternError(f"written out it has over {self.limits.pattern_size} characters")
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def item(self) -> Node:
        start, char = self.position, self.peek()
        if char == "(":
            return self.group()
        if char == "[":
            return Character(self.bracket())
        if char in "*+?":
            raise self.error(f"nothing to repeat before '{char}'")
        self.position += 1
        if char in "^$":
            self.n_edges += 1
            return Edge(char == "^")
        if char == ".":
            return Character(_IN_A_LINE)
        if char == "\\":
            return Character(self.escaped(start)[0])
        return Character(self.literal_char(char, start))

    def literal_char(self, char: str, start: int) -> Chars:
        code = ord(char)
        if code not in ANY:
            raise self.error("half of a surrogate pair", start)
        return Chars(((code, code),))

    def group(self) -> Node:
        start = self.position
        for opening, name in _REFUSED_GROUPS.items():
            if self.text.startswith(opening, start):
                raise self.error(f"{name} ({opening}...) cannot be enforced", start)
        self.position += 1
        if self.skip("?") and not self.skip(":"):
            self.group_name(start)
        self.depth += 1
        if self.depth > self.limits.depth:
            raise self.error(f"brackets nested deeper than {self.limits.depth} levels", start)
        node = self.choice()
        self.depth -= 1
        if not self.skip(")"):
            raise self.error("this '(' is never closed", start)
        return node

    def group_name(self, start: int) -> None:
        end = self.text.find(">", self.position)
        if not (self.skip("P<") or self.skip("<")) or not self.text[self.position : max(end, 0)].isidentifier():
            raise self.error("unknown kind of group; (...), (?:...) and (?<name>...) are", start)
        self.position = end + 1

    def repeated(self, item: Node) -> Node:
        start = self.position
        while bounds := self.bounds():
            if isinstance(item, Edge):
                raise self.error("an anchor cannot be repeated", start)
            item = repeat(item, *bounds)
            if item.size > self.limits.pattern_size:
                raise self.error(f"repeated so often it has over {self.limits.pattern_size} characters", start)
            self.skip("?")  # not greedy: the same texts
            if self.peek() in ("*", "+", "?"):
                raise self.error("a repetition cannot be repeated without brackets")
        return item

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.skip(sign):
                return bounds
        start = self.position
        if not self.skip("{"):
            return None
        content, closed, _ = self.text[self.position : self.position + 24].partition("}")
        least, comma, most = content.partition(",")
        if not closed or not _is_count(least) or not (most == "" or _is_count(most)):
            raise self.error("expected {n}, {n,} or {n,m}; a '{' that stands for itself is written \\{", start)
        fewest = int(least)
        upmost = None if comma and not most else int(most) if comma else fewest
        if max(fewest, upmost or 0) > self.limits.repetitions:
            raise self.error(f"at most {self.limits.repetitions} repetitions are taken", start)
        if upmost is not None and upmost < fewest:
            raise self.error("the repetition's most is below its least", start)
        self.position += len(content) + 1
        return fewest, upmost

    def bracket(self) -> Chars:
        start = self.position
        self.position += 1
        is_negated = self.skip("^")
        certain: list[Range] = []
        possible: list[Range] = []
        is_first = True
        while is_first or self.peek() != "]":
            is_first = False
            if self.peek() == "":
                raise self.error("this '[' is never closed", start)
            if self.peek() == "]":
                raise self.error("an empty set; a ']' that stands for itself is written \\]", start)
            more = self.bracket_range()
            certain += more[0].ranges
            possible += more[1].ranges
        self.position += 1
        chars = ANY & (~Chars.from_ranges(possible) if is_negated else Chars.from_ranges(certain))
        if not chars.ranges:
            raise self.error("a set without characters", start)
        return chars

    def bracket_range(self) -> tuple[Chars, Chars]:
        start = self.position
        first = self.bracket_char()
        if self.peek() != "-" or self.text[self.position + 1 : self.position + 2] in ("]", ""):
            return first
        self.position += 1
        last = self.bracket_char()
        ends = [end[0].ranges for end in (first, last)]
        if any(len(ranges) != 1 or ranges[0][0] != ranges[0][1] for ranges in ends):
            raise self.error("a range needs a single character at both ends", start)
        if ends[0][0][0] > ends[1][0][0]:
            raise self.error("a range that ends before it begins", start)
        span = Chars(((ends[0][0][0], ends[1][0][0]),))
        return span, span

    def bracket_char(self) -> tuple[Chars, Chars]:
        start = self.position
        char = self.peek()
        self.position += 1
        if char == "\\":
            if self.skip("b"):
                return (chars := Chars(((8, 8),))), chars
            return self.escaped(start)
        if char in ("[", "&", "~") and self.peek() in (char, ":"):
            raise self.error("nested sets and POSIX classes are not known here", start)
        if char == "":
            raise self.error("a set is never closed", start)
        chars = self.literal_char(char, start)
        return chars, chars

    def escaped(self, start: int) -> tuple[Chars, Chars]:
        char = self.peek()
        self.position += 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _REFUSED_ESCAPES:
            raise self.error(f"{_REFUSED_ESCAPES[char]} (\\{char}) cannot be enforced", start)
        code = self.escaped_code(char, start)
        if code not in ANY:
            raise self.error("half of a surrogate pair, or no character", start)
        return (chars := Chars(((code, code),))), chars

    def escaped_code(self, char: str, start: int) -> int:
        if char in ("x", "u"):
            return self.hexadecimal(2 if char == "x" else 4, start)
        if char in _CONTROLS:
            if char == "0" and self.peek().isdigit():
                raise self.error("octal escapes are not known here", start)
            return _CONTROLS[char]
        if char == "" or char.isalnum():
            raise self.error(f"unknown escape \\{char}", start)
        return ord(char)

    def hexadecimal(self, n_digits: int, start: int) -> int:
        digits = self.text[self.position : self.position + n_digits]
        if self.skip("{"):
            digits, closed, _ = self.text[self.position : self.position + 9].partition("}")
            self.position += 1 if closed else 0
            n_digits = len(digits)
        if not digits or len(digits) != n_digits or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise self.error("expected hexadecimal digits", start)
        self.position += n_digits
        return int(digits, 16)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def parse(text: str, limits: SchemaLimits) -> Node:
    """Parses a pattern to a tree of the texts that it matches somewhere, as JSON Schema has it. Raises PatternError."""
    return _parse(text, limits, Repeat(Character(ANY), 0, _PAD))


def _parse(text: str, limits: SchemaLimits, pad: Node) -> Node:
    """Parses a pattern, with `pad` where it has no anchor at its beginning or its end."""
    if len(text) > limits.pattern_chars:
        raise PatternError(f"it has {len(text)} characters, and at most {limits.pattern_chars} are taken")
    parser = _PatternParser(text, limits)
    tree = parser.parse()
    unanchored, n_edges = _between_edges(tree, pad)
    if n_edges != parser.n_edges:
        raise PatternError("an anchor stands where text comes before ^ or after $")
    return unanchored


def _between_edges(node: Node, pad: Node) -> tuple[Node, int]:
    """Returns the node without its anchors, with `pad` where it has none; and how many anchors it had."""
    if isinstance(node, Alternatives):
        branches = [_between_edges(branch, pad) for branch in node.branches]
        return Alternatives(tuple(branch for branch, _ in branches)), sum(n for _, n in branches)
    items = list(node.items) if isinstance(node, Sequence) else [node]
    if len(items) == 1 and isinstance(items[0], (Sequence, Alternatives)):
        return _between_edges(items[0], pad)
    first = next((i for i, item in enumerate(items) if item != Edge(True)), len(items))
    inner = items[first:]
    n_last = next((i for i, item in enumerate(reversed(inner)) if item != Edge(False)), len(inner))
    inner = inner[: len(inner) - n_last]
    return Sequence((*([] if first else [pad]), *inner, *([] if n_last else [pad]))), first + n_last


def pattern_rules(pattern: str, param: str, prefix: str, limits: SchemaLimits, effort: Effort | None = None) -> Rules:
    """Returns rules for the texts that a regular expression matches as a whole. Raises Refused, which names `param`.

    Waits where `effort` does.
    """
    (effort or Effort(limits)).check(param)
    book = RuleBook(prefix, param, limits)
    try:
        return book.rules_from(book.rule(_content(_parse(pattern, limits, NOTHING), book) or NO_TEXT))
    except PatternError as error:
        raise Refused(f"{param}: this regular expression cannot be used: {error}", param) from None


def choice_rules(texts: Texts[str], param: str, prefix: str, limits: SchemaLimits) -> Rules:
    """Returns rules for exactly these texts. Raises Refused, which names `param`."""
    if not 1 <= len(texts) <= limits.enum:
        raise Refused(f"{param} must have 1 to {limits.enum} texts, not {len(texts)}", param)
    if sum(map(len, texts)) > limits.grammar_bytes:
        raise Refused(f"{param}: its texts have over {limits.grammar_bytes} characters together", param)
    book = RuleBook(prefix, param, limits)
    return book.rules_from(book.rule(either(literal(text) for text in texts)))


def _content(node: Node, book: RuleBook) -> str:
    if isinstance(node, Character):
        return char_set(node.chars.ranges)
    if isinstance(node, Sequence):
        return sequence(*(_content(item, book) for item in node.items))
    if isinstance(node, Alternatives):
        # In brackets even when all say the same: it may be repeated.
        return f"({' | '.join(dict.fromkeys(_content(branch, book) or NO_TEXT for branch in node.branches))})"
    assert isinstance(node, Repeat)
    content = _content(node.item, book)
    if not content:
        return ""
    item = content if isinstance(node.item, (Character, Alternatives)) else f"({content})"
    if node.upmost is None:
        return sequence(book.many(item, node.fewest, node.fewest), f"{item}*")
    return book.many(item, node.fewest, node.upmost)
