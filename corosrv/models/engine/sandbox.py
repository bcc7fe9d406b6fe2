"""The sandbox of a model's chat template: code from a stranger, with limits on its work and output.

Jinja's sandbox keeps a template from Python's insides. It stops neither nested loops nor strings that double, and the
standard filters make a gigabyte out of one number; so every loop, call, filter and piece of output is counted here.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from corosrv.base.processor import ProcessorLimit
from corosrv.models.engine.template_code import Generation, OutputCounting, StepCounting

# Jinja's filters but those that build much from little and that no model's template was seen to need.
_FILTERS = frozenset(
    ("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
     "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
     "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title",
     "tojson", "trim", "truncate", "unique", "upper", "wordcount")
)  # fmt: skip
# The attributes that templates may read of each type, methods mostly. What is not here has none, as numbers.
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset(
        ("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "isalnum", "isalpha",
         "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle",
         "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
         "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
         "title", "upper", "zfill")
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    LoopContext: frozenset(
        ("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem",
         "revindex", "revindex0")
    ),
    Cycler: frozenset(("current", "next", "reset")),
    Macro: frozenset(("arguments", "caller", "catch_kwargs", "catch_varargs", "name")),
}  # fmt: skip
_PADDING = frozenset(("center", "ljust", "rjust", "zfill"))
_SPLITTING = frozenset(("rsplit", "split", "splitlines"))
# All characters that str.isspace() knows.
_SPACES = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# Filters that go through all items at once, and those of them that compare items and so build from each.
_ITERATING = frozenset(("list", "map", "reject", "rejectattr", "select", "selectattr", "sum"))
_COMPARING = frozenset(("groupby", "join", "max", "min", "sort", "unique"))
# Which argument of a filter is a path of attributes, unless it is given by its name.
_PATHS = {
    "groupby": 1,
    "join": 2,
    "max": 2,
    "min": 2,
    "rejectattr": 1,
    "selectattr": 1,
    "sort": 3,
    "sum": 1,
    "unique": 2,
}
_PATH_PARTS = 16
# A width of five digits, or one that a format takes from an argument.
_WIDE = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")
_FIELD = 350  # characters of the longest number that a format writes without a width
_ROUNDING = 20  # digits
_NUMBER_BITS = 256
_DATE_FORMAT = 100  # characters
_ITEM = 16  # characters that one item of a list stands for


class TemplateLimits(NamedTuple):
    """The limits of one rendering."""

    steps: int = 200_000  # loop rounds, calls and pieces of output
    seconds: float = 0.25  # of the processor: a pause of the machine is not the template's doing
    characters: int = 8_000_000  # of all output together, and of any value on the way to it
    made_bytes: int = 256_000_000  # of all values made on the way, kept or not
    source: int = 256 * 1024  # characters of the template itself
    tokens: int = 25_000  # of the template itself; the longest known one has a tenth


class TemplateLimitReached(jinja2.TemplateRuntimeError):
    """A rendering took more steps, characters or processor time than it may."""


class _OwnList(list[Any]):
    """A list that the template has made, and may append to; those of the conversation are not its own."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Offers what templates of models expect. One rendering at a time; nothing in here switches greenlets."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])
    code_generator_class = OutputCounting

    def __init__(self, limits: TemplateLimits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            finalize=self.printed,
            optimized=False,  # it tries each part of an expression anew, at a template's cost
        )
        self._limits = limits
        self._processor = ProcessorLimit(limits.seconds)
        self._begin()
        filters = {name: self.filters[name] for name in _FILTERS} | {"tojson": _to_json}
        self.filters = {name: self._counting(name, function) for name, function in filters.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def render_limited(self, template: jinja2.Template, arguments: dict[str, Any]) -> str:
        self._begin()
        return "".join(template.generate(arguments))

    def _begin(self) -> None:
        self._steps_left = self._limits.steps
        self._characters_left = self._limits.characters
        self._bytes_left = self._limits.made_bytes
        self._processor.start()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return StepCounting().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        """Reads a template's text. Refuses one that would take long to compile."""
        if len(source) > self._limits.source:
            raise jinja2.TemplateSyntaxError(f"it is longer than {self._limits.source} characters", 1)
        return TokenStream(self._some_tokens(super()._tokenize(source, name, filename, state)), name, filename)

    def _some_tokens(self, tokens: Iterable[Token]) -> Iterator[Token]:
        for n_before, token in enumerate(tokens):
            if n_before >= self._limits.tokens:
                raise jinja2.TemplateSyntaxError(f"it has more than {self._limits.tokens} tokens", token.lineno)
            yield token

    # What templates are rewritten to call; see StepCounting.

    def count_items(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for item in iterable:
            self._step()
            yield item

    def joined(self, parts: Sequence[Any]) -> str:
        self._check_size(sum(map(self._size, parts)))
        text = "".join(map(str, parts))
        self._check_result(text)
        return text

    def count_made(self, value: Any) -> Any:
        """Counts a value that a step has made."""
        self._check_result(value, is_flat=True)
        return value

    def built(self, value: Any) -> Any:
        self._check_result(value)
        return _OwnList(value) if isinstance(value, list) else value

    def printed(self, value: Any) -> Any:
        """Counts a piece of output, the template's own text and what goes into a variable first included."""
        self._characters_left -= len(value) if isinstance(value, str) else self._size(value)
        if self._characters_left < 0:
            raise self._too_long()
        return value

    # What Jinja asks before it calls something.

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, Namespace) or (attr == "append" and isinstance(obj, _OwnList)):
            return True
        return any(attr in names for kind, names in _ATTRIBUTES.items() if isinstance(obj, kind))

    def call(self, context: Any, function: Any, *arguments: Any, **keywords: Any) -> Any:
        self._step()
        if getattr(function, "__self__", None) is self:  # put there by StepCounting; templates cannot name it
            return function(*arguments)
        method = getattr(function, "__wrapped__", function)
        if arguments and getattr(method, "__name__", "") == "join" and isinstance(arguments[0], Iterator):
            arguments = (list(self._watched(arguments[0])), *arguments[1:])
        self._check_method(method, (*arguments, *keywords.values()))
        result = super().call(context, function, *arguments, **keywords)
        self._check_result(result)
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._check_time()
        if operator == "**" or (operator == "*" and not (_is_number(left) and _is_number(right))):
            raise jinja2.TemplateRuntimeError(f"the operator {operator} is for numbers of ordinary size")
        self._check_number(left)
        self._check_number(right)
        if operator == "%" and isinstance(left, str):
            self._check_format(left, right if isinstance(right, tuple) else (right,))
        result = super().call_binop(context, operator, left, right)
        self._check_result(result, is_flat=True)
        return result

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # with Jinja's marks for the arguments that it adds
        def counting(*arguments: Any, **keywords: Any) -> Any:
            self._step()
            # What Jinja adds comes first.
            values = arguments[1:] if hasattr(function, "jinja_pass_arg") else arguments
            added = arguments[: len(arguments) - len(values)]
            if values and isinstance(values[0], Iterable) and values[0]:
                if name in _ITERATING or name in _COMPARING:
                    values = (self._watched(values[0], is_deep=name in _COMPARING), *values[1:])
                if name == "join" or (name == "tojson" and isinstance(values[0], Iterator)):
                    values = (list(values[0]), *values[1:])
            self._check_filter(name, values, keywords)
            result = function(*added, *values, **keywords)
            self._check_result(result)
            return result

        return counting

    # Before something is built: how large it may get.

    def _watched(self, iterable: Iterable[Any], is_deep: bool = True) -> Iterator[Any]:
        """Goes through what a filter asks for. `is_deep`: the filter builds something from each item as a whole."""
        size = 0
        for item in iterable:
            self._check_time()
            size += self._size(item) if is_deep else _ITEM
            self._check_size(size)
            yield item

    def _check_filter(self, name: str, values: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        value, more = values[0], (*values[1:], *keywords.values())
        paths = [keywords.get("attribute"), *values[_PATHS.get(name, len(values)) :][:1]]
        if any(isinstance(path, str) and path.count(".") + path.count(",") >= _PATH_PARTS for path in paths):
            raise jinja2.TemplateRuntimeError(f"{name}: a path of attributes may have {_PATH_PARTS} parts")
        if name == "join" and isinstance(value, list):
            self._check_size(sum(map(self._size, value)) + len(value) * max(map(self._size, more), default=0))
        elif name == "format":
            self._check_format(str(value), more)
        elif name == "indent":
            width = max((_length(argument) for argument in more), default=4)
            text = str(value)
            self._check_size(len(text) + (sum(map(text.count, _SPACES)) + 1 if width > 1 else 1) * width)
        elif name == "replace":
            self._check_replace(str(value), more)
        elif name == "round" and any(_length(argument) > _ROUNDING for argument in more if isinstance(argument, int)):
            raise jinja2.TemplateRuntimeError(f"round: a precision may be {_ROUNDING} digits")
        elif name == "tojson":
            indent = keywords.get("indent", values[2] if len(values) > 2 else None)
            self._size(value, indent=indent if isinstance(indent, int) else 0)
        elif name in ("title", "wordcount"):  # which split a text into pieces
            self._check_size(_ITEM * len(str(value)))
        elif name == "string":
            self._size(value)
        elif name == "sum" and not all(isinstance(argument, (str, int, float)) for argument in more):
            raise jinja2.TemplateRuntimeError("sum is for numbers")

    def _check_method(self, function: Any, arguments: tuple[Any, ...]) -> None:
        text, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(text, _OwnList) and name == "append":
            self._check_size(_ITEM * len(text) + sum(map(self._size, arguments)))
        if not isinstance(text, str):
            return
        if name not in _ATTRIBUTES[str]:  # format_map, which Jinja offers without asking
            raise jinja2.TemplateRuntimeError(f"{name} is not for templates")
        if name in _PADDING:
            self._check_size(max(map(_length, arguments), default=0))
        elif name == "format":
            self._check_format(text, arguments)
        elif name == "replace":
            self._check_replace(text, arguments)
        elif name in _SPLITTING:
            parting = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            self._check_size(_ITEM * (text.count(parting) if parting else sum(map(text.count, _SPACES))))
        elif name == "join":
            self._check_size(sum(self._size(argument) + len(text) * _length(argument) for argument in arguments))

    def _check_format(self, form: str, arguments: Sequence[Any]) -> None:
        n_fields = form.count("{") + form.count("%")
        size = len(form) + n_fields * (_FIELD + max(map(self._size, arguments), default=0))
        self._check_size(max(size, _ITEM * len(form)))  # reading a format takes longer than copying it
        if _WIDE.search(form):
            raise jinja2.TemplateRuntimeError("a format may not ask for such a width")
        self._check_size(size + sum(map(int, re.findall(r"\d+", form))))

    def _check_replace(self, text: str, arguments: Sequence[Any]) -> None:
        old, new = (*map(str, arguments[:2]), "", "")[:2]
        self._check_size(len(text) + text.count(old) * len(new))

    def _check_result(self, result: Any, is_flat: bool = False) -> None:
        self._check_number(result)
        if isinstance(result, str):
            self._check_size(len(result))
        elif isinstance(result, (list, tuple, dict)):
            self._check_size(_ITEM * len(result))
            if not is_flat:
                self._size(result)
        else:
            return
        self._bytes_left -= sys.getsizeof(result)
        if self._bytes_left < 0:
            raise TemplateLimitReached("it makes more values than a template may")

    def _check_number(self, value: Any) -> None:
        if isinstance(value, int) and value.bit_length() > _NUMBER_BITS:
            raise jinja2.TemplateRuntimeError("a number is too large")

    def _size(self, value: Any, indent: int = 0) -> int:
        """Returns the characters of a value, each part as often as it occurs. Refuses what is too large.

        `indent`: by how many characters more each level is written.
        """
        if isinstance(value, str):
            self._check_size(len(value))
            return len(value)
        size, pending = 0, [(value, 0)]
        while pending:
            part, width = pending.pop()
            if isinstance(part, Namespace):
                raise jinja2.TemplateRuntimeError("a namespace is no value")
            size += width + (len(part) if isinstance(part, str) else _ITEM)
            if isinstance(part, int):
                size += part.bit_length() // 3
            self._check_size(size)
            if isinstance(part, (list, tuple, dict)):
                self._check_size(_ITEM * len(part))
                inner = (*part.keys(), *part.values()) if isinstance(part, dict) else part
                pending += [(one, width + indent) for one in inner]
        return size

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateLimitReached(f"it takes more than {self._limits.steps} steps")
        if self._processor.is_used_up():
            raise self._too_slow()

    def _check_time(self) -> None:
        if self._processor.is_used_up():
            raise self._too_slow()

    def _check_size(self, size: int) -> None:
        if size > self._limits.characters:
            raise self._too_long()

    def _too_slow(self) -> TemplateLimitReached:
        return TemplateLimitReached(f"it takes more than {self._limits.seconds:g} s of processor time")

    def _too_long(self) -> TemplateLimitReached:
        return TemplateLimitReached("it builds a longer text than a template may")


def _length(value: Any) -> int:
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 1e12


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateRuntimeError(message)


def _strftime_now(form: str) -> str:
    if isinstance(form, str) and len(form) > _DATE_FORMAT:
        raise jinja2.TemplateRuntimeError(f"strftime_now: a format may have {_DATE_FORMAT} characters")
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """Encodes JSON as Transformers does, without HTML escapes."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise jinja2.TemplateRuntimeError("tojson: indent must be from 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
