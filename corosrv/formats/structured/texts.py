"""Converts regular expressions and lists of texts to GBNF: answers that are one of some texts, without quotes."""

from __future__ import annotations

from collections.abc import Sequence as Texts

from corosrv.base.errors import Refused
from corosrv.formats.structured.gbnf import NOTHING, Rules, char_set, either, literal, sequence
from corosrv.formats.structured.limits import Effort, SchemaLimits
from corosrv.formats.structured.pattern import parse_whole
from corosrv.formats.structured.pattern_tree import Alternatives, Character, Node, PatternError, Repeat, Sequence
from corosrv.formats.structured.rule_book import RuleBook


def pattern_rules(pattern: str, param: str, prefix: str, limits: SchemaLimits, effort: Effort | None = None) -> Rules:
    """Returns rules for the texts that a regular expression matches as a whole. Raises Refused, which names `param`.

    Waits where `effort` does.
    """
    (effort or Effort(limits)).check(param)
    book = RuleBook(prefix, param, limits)
    try:
        return book.rules_from(book.rule(_content(parse_whole(pattern, limits), book) or NOTHING))
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
        return f"({' | '.join(dict.fromkeys(_content(branch, book) or NOTHING for branch in node.branches))})"
    assert isinstance(node, Repeat)
    content = _content(node.item, book)
    if not content:
        return ""
    item = content if isinstance(node.item, (Character, Alternatives)) else f"({content})"
    if node.upmost is None:
        return sequence(book.many(item, node.fewest, node.fewest), f"{item}*")
    return book.many(item, node.fewest, node.upmost)
