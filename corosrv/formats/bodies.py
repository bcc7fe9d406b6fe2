"""Checks and decodes what clients send: texts, JSON, and the fields of a body. Knows no HTTP.

A JSON parser recurses and builds objects, so a text is scanned for its limits (depth, values, keys, digits) before it
is parsed. `scan` does that in Python. Where the native core is loaded, the server sets its scanner with `use_scanner`:
it is a hundred times faster. Errors name the field at fault.
"""

from __future__ import annotations

import binascii
import functools
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from corosrv.base.errors import InvalidJson, Refused


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
    """Describes the problem for the client."""
    if limit == "digits" and _EXPONENT.search(text[max(0, at - LIMITS.digits - 64) : at]):
        return f"has a number that is too large: an exponent may be {LIMITS.digits} at most"
    return {
        "depth": f"is nested deeper than {LIMITS.depth} levels",
        "keys": f"has an object of more than {LIMITS.keys} keys",
        "digits": f"has a number of more than {LIMITS.digits} digits",
        "values": f"has more than {LIMITS.values} values",
    }[limit]


# From this size on, a body may become so many objects that the collector would look through them again and again.
_LARGE = 65_536
_MAX_WORDS = 200  # characters of a message about a field
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MAX_NAME = 120  # characters of a member's name in a message
_UNNAMED = re.compile(r"(.*, got `(\w+)`) - at `\$((?:\.\w+|\[\d+\])+)\[\.\.\.\]`")
_NOT_ONE_OF = "invalid enum value"
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_JSON_TYPES = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}

T = TypeVar("T")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes JSON, with or without a byte order mark before it.

    Waits where the scanner of json_limits does. Raises Refused, which names the field at fault, and InvalidJson.
    """
    text = body.removeprefix(_BYTE_ORDER_MARK)
    check(text)
    return _decode(text, decoder)


def decode_unscanned(text: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes JSON that is too short to need a scan of its limits, or has had one. Raises Refused and InvalidJson."""
    return _decode(text.removeprefix(_BYTE_ORDER_MARK), decoder)


def _decode(text: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        text.decode("utf-8")
        if len(text) <= _LARGE:
            return decoder.decode(text)
        with _without_collector():
            return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _invalid_field(_with_member_name(str(error), text), decoder.type) from None
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8 from byte {error.start} on") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJson(str(error)) from None


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pauses the garbage collector while a large body is decoded, which takes several times as long with it."""
    is_paused = gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if is_paused:
            gc.enable()


def convert(value: Any, kind: type[T], param: str = "", *, strict: bool = True) -> T:
    """Converts a decoded value, which stands at `param`, to a narrower type. Raises Refused, which names the field.

    `strict`: False reads numbers from texts, as for the members of a query.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), kind, param) from None


def _with_member_name(message: str, text: bytes) -> str:
    """Puts the name of the member at fault into msgspec's words, which say `[...]` for any member of a map.

    Of a large body they stay as they are: it is not decoded a second time.
    """
    match = _UNNAMED.fullmatch(message)
    if match is None or len(text) > _LARGE:
        return message
    words, kind, path = match.groups()
    try:
        members = _value_at(path, text)
        # The first one of that type: the decoder stopped there.
        name = next(name for name, value in members.items() if _JSON_TYPES[type(value)] == kind)
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, AttributeError, StopIteration):
        return message  # what follows the fault is no JSON, or stands in place of what the decoder saw
    return f"{words} - at `${path}.{name[:_MAX_NAME]}`"


def _value_at(path: str, text: bytes) -> Any:
    value = msgspec.json.decode(text)
    for name, position in _STEP.findall(path):
        value = value[name] if name else value[int(position)]
    return value


def _invalid_field(message: str, kind: Any, place: str = "") -> Refused:
    """Turns msgspec's words, as in `Expected `int`, got `str` - at `$.n``, into a sentence and a parameter."""
    words, _, path = message.partition(" - at `$")
    param = (place + path.rstrip("`")).lstrip(".") or None
    words = words.replace("`", "")
    # A value that is none of the known ones is quoted, however long it is.
    words = words[:1].lower() + (words[1:] if len(words) <= _MAX_WORDS else words[1:_MAX_WORDS] + "...")
    match = re.match(r"object missing required field (\w+)", words)
    if match:
        param = f"{param}.{match.group(1)}" if param else match.group(1)
        return Refused(f"{param} is required", param, "missing_required_parameter")
    if param is None:
        wanted = "list" if words.startswith("expected array") else "object"
        return Refused(f"the body must be a JSON {wanted}: {words}", None, "invalid_json")
    if words.startswith(_NOT_ONE_OF) and (values := _known_values(kind, path.rstrip("`"))):
        words += f", must be one of {', '.join(values)}"
    return Refused(f"{param}: {words}", param)


def _known_values(kind: Any, path: str) -> list[str]:
    """Returns the texts that may stand at a path of a type, as far as they are listed there."""
    kinds = [_type_info(kind)]
    for name, _ in _STEP.findall(path):
        kinds = [inner for outer in _alternatives(kinds) for inner in _inner_types(outer, name)]
    literals = [found for found in _alternatives(kinds) if isinstance(found, msgspec.inspect.LiteralType)]
    return sorted({value for literal in literals for value in literal.values if isinstance(value, str)})


@functools.cache  # the types of bodies are few
def _type_info(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _alternatives(kinds: list[msgspec.inspect.Type]) -> Iterator[msgspec.inspect.Type]:
    for kind in kinds:
        if isinstance(kind, msgspec.inspect.UnionType):
            yield from kind.types
        else:
            yield kind


def _inner_types(kind: msgspec.inspect.Type, name: str) -> list[msgspec.inspect.Type]:
    """Returns the type of a struct's field of this name, or of a list's items where there is no name."""
    if isinstance(kind, msgspec.inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == name]
    if isinstance(kind, msgspec.inspect.ListType) and not name:
        return [kind.item_type]
    return []


_PIECE = 1 << 16  # characters of base64 between two turns of others; whole groups of 4
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")
_LAST_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")  # padding is allowed at the very end alone


def decode_base64(text: str, give_way: Callable[[], object] = lambda: None) -> bytes:
    """Decodes base64 without line breaks; calls `give_way` between its pieces. Raises ValueError for what is none."""
    if len(text) % 4:
        raise ValueError("the length is no multiple of 4")
    pieces = []
    for start in range(0, len(text), _PIECE):
        give_way()
        piece = text[start : start + _PIECE]
        if not (_LAST_BASE64 if start + _PIECE >= len(text) else _BASE64).fullmatch(piece):
            raise ValueError("other characters than those of base64")
        pieces.append(binascii.a2b_base64(piece))
    return b"".join(pieces)


def check_text(value: Any, param: str) -> str:
    """Returns a string that can be encoded as UTF-8. Raises Refused for half a surrogate pair, which JSON allows."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{param}: half of a surrogate pair is no character", param) from None
    return str(value)
