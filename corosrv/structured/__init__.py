"""JSON schemas to GBNF: the texts of the grammar are the JSON values that are valid for the schema.

Knows no HTTP and no engine: values in, text out. What a grammar cannot hold is refused by name, so that an answer that
is complete is valid.
"""

from __future__ import annotations

from typing import Any

from corosrv.structured.effort import Effort
from corosrv.structured.grammar.gbnf import Rules, grammar
from corosrv.structured.grammar.rule_book import RuleBook
from corosrv.structured.limits import DEFAULT, Limits
from corosrv.structured.schema.anything import Anything
from corosrv.structured.schema.cache import RulesCache
from corosrv.structured.schema.check import check
from corosrv.structured.schema.convert import convert

__all__ = ["Effort", "Limits", "Rules", "any_object_rules", "fragment", "grammar", "grammar_of"]

_cache = RulesCache()


def grammar_of(
    schema: dict[str, Any] | bool, param: str, limits: Limits = DEFAULT, effort: Effort | None = None
) -> str:
    """GBNF whose texts are valid for the schema. Raises InvalidSchema, which names `param` and the place in it.

    Takes less than a millisecond for most schemas.
    """
    rules = fragment(schema, param, "v", limits, effort)
    return grammar(rules.start, rules)


def fragment(
    schema: dict[str, Any] | bool, param: str, prefix: str, limits: Limits = DEFAULT, effort: Effort | None = None
) -> Rules:
    """The same as rules to be built into another grammar, with `gbnf.grammar`. Raises InvalidSchema.

    `prefix`: letters, digits and '-', another one for each schema of the grammar, and not `json` or `root`. `effort`:
    one for all schemas of a request.
    """
    spent = effort or Effort(limits)
    spent.check(param)
    check(schema, param, limits, lambda: spent.check(param))
    return _cache.get(schema, f"{prefix} {limits}", lambda: convert(schema, param, prefix, limits, spent))


def any_object_rules(limits: Limits = DEFAULT) -> Rules:
    """Any JSON object."""
    book = RuleBook("json", "", limits)
    return book.rules_from(Anything(book, limits).object())
