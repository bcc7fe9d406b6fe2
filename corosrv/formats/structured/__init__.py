"""Converts JSON schemas, regular expressions and lists of texts to GBNF, for answers that are valid by construction.

The contract:

- Sound: every text of the grammar is JSON and valid for the schema (draft 2020-12; `format` and `pattern` included). So
  an answer that comes to its end validates. One that the token limit cuts off is the beginning of a valid text.
- Not complete: not every valid value is a text of the grammar. Properties come in the schema's order, the named ones
  before others. Objects, arrays, strings and numbers that the schema leaves open are bounded by `SchemaLimits`; white
  space is bounded, too.
- Refused by name: what no grammar can enforce (`not`, remote references, look-ahead in patterns, ...) raises
  InvalidSchema with a pointer to the place, and is never ignored. So is a schema over a limit. Annotations are ignored.
- Bounded: converting takes at most `SchemaLimits.seconds` of the processor for all schemas of a request, and memory in
  proportion to `SchemaLimits.grammar_bytes`. The same schema is converted once, and then kept in a cache.
- Pure: values in, text out. Knows no HTTP and no engine, and waits only in `Effort.check`, where its caller says so.

The rooms: `schema` checks and converts schemas, `patterns` converts regular expressions, `tags` has free text with
forms in it, `grammar` writes rules.
"""

from __future__ import annotations

from typing import Any

from corosrv.formats.structured.gbnf import Rules, grammar
from corosrv.formats.structured.limits import DEFAULT_LIMITS, Effort, SchemaLimits
from corosrv.formats.structured.pattern import choice_rules, pattern_rules
from corosrv.formats.structured.rule_book import RuleBook
from corosrv.formats.structured.schema.check import check
from corosrv.formats.structured.schema.conversion import AnyValue
from corosrv.formats.structured.schema.convert import RulesCache, convert
from corosrv.formats.structured.tags import StructuralTag, read_tag, tag_rules

__all__ = [
    "Effort",
    "Rules",
    "SchemaLimits",
    "StructuralTag",
    "any_object_rules",
    "choice_rules",
    "fragment",
    "grammar",
    "grammar_of",
    "pattern_rules",
    "read_tag",
    "tag_rules",
]

_cache = RulesCache()


def grammar_of(
    schema: dict[str, Any] | bool, param: str, limits: SchemaLimits = DEFAULT_LIMITS, effort: Effort | None = None
) -> str:
    """Returns GBNF whose texts are valid for the schema. Raises InvalidSchema, which names `param` and the place in it.

    Takes less than a millisecond for most schemas.
    """
    rules = fragment(schema, param, "v", limits, effort)
    return grammar(rules.start, rules)


def fragment(
    schema: dict[str, Any] | bool,
    param: str,
    prefix: str,
    limits: SchemaLimits = DEFAULT_LIMITS,
    effort: Effort | None = None,
) -> Rules:
    """Returns the rules for a schema, to be built into another grammar with `gbnf.grammar`. Raises InvalidSchema.

    `prefix`: letters, digits and '-', another one for each schema of the grammar, and not `json` or `root`. `effort`:
    one for all schemas of a request.
    """
    budget = effort or Effort(limits)
    budget.check(param)
    check(schema, param, limits, lambda: budget.check(param))
    return _cache.get(schema, f"{prefix} {limits}", lambda: convert(schema, param, prefix, limits, budget))


def any_object_rules(limits: SchemaLimits = DEFAULT_LIMITS) -> Rules:
    book = RuleBook("json", "", limits)
    return book.rules_from(AnyValue(book, limits).object())
