"""Checks the limits of a JSON text: how deep it nests, how many values, keys and digits it has.

A parser recurses and builds objects, so a text is scanned before it is parsed. `scan` does it in Python. Where the
native core is loaded, its scanner is a hundred times faster: the server sets it with `use_scanner`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from corosrv.base.errors import Refused


class JsonLimits(NamedTuple):
    """The most that a text may have of each."""

    depth: int = 128  # of brackets in brackets
    keys: int = 4096  # of one object
    digits: int = 308  # of one number; an exponent may be as large
    values: int = 2**19  # strings and commas together; decoding them takes some 50 ms, in which nobody else is served


# The name of the first limit that a text exceeds, and the byte behind the place; None if it exceeds none.
Fault = tuple[str, int] | None
Scanner = Callable[[bytes], Fault]

LIMITS = JsonLimits()
_MARK = re.compile(rb'["\[\]{}:,]|([0-9]+)(?:\.([0-9]*))?(?:[eE](?:(-)|\+)?([0-9]*))?')
_EXPONENT = re.compile(rb"[eE]\+?[0-9]*$")


def scan(text: bytes, limits: JsonLimits = LIMITS) -> Fault:
    """Finds the first limit that the text exceeds. Says nothing about whether it is JSON: its parser does."""
    if b"\\" in text:
        # Neither an escaped backslash nor an escaped quote ends a string; both stand in strings alone.
        text = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    keys: list[int] = []  # of each open bracket
    n_values = at = 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        match mark.group()[:1]:
            case b"[" | b"{":
                keys.append(0)
                if len(keys) > limits.depth:
                    return "depth", at
            case b"]" | b"}":
                del keys[-1:]
            case b":":
                if keys:
                    keys[-1] += 1
                    if keys[-1] > limits.keys:
                        return "keys", at
            case b'"' | b",":
                if mark.group() == b'"':
                    at = text.find(b'"', at) + 1 or len(text)
                n_values += 1
                if n_values > limits.values:
                    return "values", at
            case _ if _is_large(mark, limits.digits):
                return "digits", at
    return None


def _is_large(number: re.Match[bytes], most: int) -> bool:
    integer, fraction, minus, exponent = number.groups()
    if len(integer) + len(fraction or b"") > most:
        return True
    power = (exponent or b"").lstrip(b"0")
    # An exponent of many digits is not read: int() takes long for it.
    return not minus and (len(power) > len(str(most)) or int(power or b"0") > most)


_scanner: Scanner = scan


def use_scanner(scanner: Scanner) -> None:
    """Replaces the scanner that `check` uses, for the whole process. `scanner` may wait."""
    global _scanner
    _scanner = scanner


def check(text: bytes) -> None:
    """Raises Refused for a text that exceeds a limit. Waits where the scanner does."""
    fault = _scanner(text)
    if fault is not None:
        limit, at = fault
        raise Refused(f"the body {_words(limit, text, at)} (byte {at})", None, "invalid_json")


def _words(limit: str, text: bytes, at: int) -> str:
    """Words the problem for the client."""
    if limit == "digits" and _EXPONENT.search(text[max(0, at - LIMITS.digits - 64) : at]):
        return f"has a number that is too large: an exponent may be {LIMITS.digits} at most"
    return {
        "depth": f"is nested deeper than {LIMITS.depth} levels",
        "keys": f"has an object of more than {LIMITS.keys} keys",
        "digits": f"has a number of more than {LIMITS.digits} digits",
        "values": f"has more than {LIMITS.values} values",
    }[limit]
