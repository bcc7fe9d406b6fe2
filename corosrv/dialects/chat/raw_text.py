"""Makes GBNF for texts that end where a given word begins."""

from __future__ import annotations

from corosrv.formats.structured.grammar.gbnf import NOTHING, QUOTE, Rules, char_set, either, literal


def texts_without(word: str, prefix: str) -> Rules:
    """Makes rules, named after `prefix`, for texts in which a word does not occur."""
    bodies = {f"{prefix}-{n}": _after(word, n, prefix) for n in range(len(word))}
    return Rules(f"{prefix}-text", {f"{prefix}-text": f"({prefix}-0)* {literal(word[0])}*", **bodies})


def _after(word: str, n: int, prefix: str) -> str:
    """Returns what may follow the first n letters of a word, until none of the last letters could begin it."""
    steps = {letter: _longest_begun(word, word[:n] + letter) for letter in dict.fromkeys(word)}
    goes_on = [(letter, m) for letter, m in steps.items() if 0 < m < len(word)]
    other = char_set([(ord(letter), ord(letter)) for letter, m in steps.items() if m > 0], is_negated=True)
    return either((other, *(f"{literal(letter)} {prefix}-{m}" for letter, m in goes_on)))


def _longest_begun(word: str, text: str) -> int:
    """Returns how many letters of the word stand at the end of a text."""
    return next((n for n in range(len(text), 0, -1) if text.endswith(word[:n])), 0)


def unquoted(rules: Rules, name: str) -> Rules | None:
    """Returns the rules of JSON strings without their quotes; None where there is more than strings.

    What JSON escapes stays escaped. `name`: of the new rule.
    """
    bodies, start = rules.bodies, rules.start
    while bodies[start] in bodies:
        start = bodies[start]
    body = bodies[start]
    if body == f"{QUOTE} {QUOTE}":
        return Rules(name, {name: NOTHING})
    if not body.startswith(f"{QUOTE} ") or not body.endswith(f" {QUOTE}") or " | " in body:
        return None
    return Rules(name, {**bodies, name: body[len(QUOTE) + 1 : -len(QUOTE) - 1]})
