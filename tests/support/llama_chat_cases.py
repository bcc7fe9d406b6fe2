"""The answers with which llama.cpp tests its own parsers, read from the sources that `llama_templates` brings.

The cases are chains of C++ calls, `tst.test("...").tools({ a_tool }).expect(a_message).run()`. What is read of the
language is what they consist of: literals, lists, names of constants and calls of a few functions.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.support import llama_templates

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<raw>R"(?P<mark>[^(\s]*)\((?P<body>.*?)\)(?P=mark)")
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<name>[A-Za-z_][\w:]*)
    |(?P<number>\d+)
    |(?P<sign>[{}(),.+;=])
    """,
    re.VERBOSE | re.DOTALL,
)
_TEMPLATE = re.compile(r'"models/templates/([^"]+)\.jinja"')
# Their arguments, in order.
_MESSAGES = {
    "simple_assist_msg": ("content", "reasoning", "name", "arguments", "id"),
    "message_with_tool_calls": ("name", "arguments"),
    "message_with_tool_calls_and_reasoning": ("name", "arguments", "reasoning"),
    "message_with_content_and_tool_call": ("content", "name", "arguments"),
    "message_with_reasoning_and_tool_call": ("reasoning", "name", "arguments"),
    "message_with_reasoning_content_and_multiple_tool_calls": ("reasoning", "content", "calls"),
}


class NotRead(Exception):
    """Something in the sources is written in a way that is not read here."""


@dataclass(frozen=True)
class ExpectedAnswer:
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # names, and arguments as JSON


@dataclass
class ChatCase:
    """One case: the answer of a model of a template, how it was asked for, and what it is read as."""

    line: int
    template: str
    answer: str
    options: dict[str, Any] = field(default_factory=dict)
    expected: ExpectedAnswer = ExpectedAnswer()


class _Tokens:
    def __init__(self, source: str, start: int) -> None:
        self._source = source
        self._at = start
        self.kind = self.value = ""
        self.advance()

    def advance(self) -> str:
        """Reads the next token; returns the one before."""
        last = self.value
        while True:
            match = _TOKEN.match(self._source, self._at)
            if match is None:
                raise NotRead(self._source[self._at : self._at + 40])
            self._at = match.end()
            if match.lastgroup is not None:
                break
        self.kind = match.lastgroup if match.lastgroup != "body" else "raw"
        self.kind = "raw" if match.group("raw") else self.kind
        self.value = match.group("body") if match.group("raw") else match.group()
        return last

    def take(self, value: str) -> None:
        if self.kind in ("raw", "text") or self.value != value:
            raise NotRead(f"{self.value!r} where {value!r} was expected")
        self.advance()

    def is_sign(self, value: str) -> bool:
        return self.kind == "sign" and self.value == value


class _Reader:
    """Reads values out of one source file."""

    def __init__(self, source: str) -> None:
        self._source = source

    def cases(self) -> Iterator[ChatCase | None]:
        """Yields the cases; None for one that is not read."""
        templates: list[str] = []
        for match in re.finditer(r"peg_tester\((\w*)|\btst2?\s*\.test\(", self._source):
            if match.group().startswith("peg_tester"):
                templates = self._templates(match.end(), match.group(1))
                continue
            for template in templates:
                yield self._case(template, match.end())
            if not templates:
                yield None

    def _templates(self, at: int, argument: str) -> list[str]:
        """Returns the templates that the tester at this place is made for, which may be an argument of its function."""
        if not argument:
            return _TEMPLATE.findall(self._source[at : at + 120].partition(",")[0])
        names = re.findall(rf"^static void (\w+)\(.*\b{argument}\b", self._source[:at], re.MULTILINE)
        loop = (
            re.search(rf"for \(const char \* (\w+) : \{{([^}}]*)\}}\) \{{\s*{names[-1]}\(\1,", self._source)
            if names
            else None
        )
        return _TEMPLATE.findall(loop[2]) if loop else []

    def _case(self, template: str, start: int) -> ChatCase | None:
        try:
            tokens = _Tokens(self._source, start)
            case = ChatCase(self._source.count("\n", 0, start) + 1, template, self._value(tokens))
            tokens.take(")")
            while True:
                tokens.take(".")
                name = tokens.advance()
                values = self._arguments(tokens)
                if name == "run":
                    break
                self._set(case, name, values)
        except NotRead:
            return None
        case.expected = _message(case.options)
        return case

    def _set(self, case: ChatCase, name: str, values: list[Any]) -> None:
        value = values[0] if values else True
        if name == "expect":
            case.options.update(content="", reasoning="", calls=[])
            case.options.update(value)
        elif name == "expect_tool_calls":
            case.options["calls"] = [call[:2] for call in value]
        else:
            case.options[{"expect_content": "content", "expect_reasoning": "reasoning"}.get(name, name)] = value

    def _arguments(self, tokens: _Tokens, start: str = "(", end: str = ")") -> list[Any]:
        tokens.take(start)
        values = []
        while not tokens.is_sign(end):
            values.append(self._value(tokens))
            if not tokens.is_sign(end):
                tokens.take(",")
        tokens.take(end)
        return values

    def _value(self, tokens: _Tokens) -> Any:
        value = self._operand(tokens)
        while tokens.is_sign("+"):
            tokens.take("+")
            value += self._operand(tokens)
        return value

    def _operand(self, tokens: _Tokens) -> Any:
        if tokens.kind in ("text", "raw"):
            text = ""
            while tokens.kind in ("text", "raw"):
                text += tokens.value if tokens.kind == "raw" else _literal(tokens.value)
                tokens.advance()
            return text
        if tokens.is_sign("{"):
            return self._arguments(tokens, "{", "}")
        if tokens.kind == "number":
            return int(tokens.advance())
        if tokens.kind != "name":
            raise NotRead(tokens.value)
        name = tokens.advance()
        if tokens.is_sign("("):
            return self._call(name, self._arguments(tokens))
        return {"true": True, "false": False}.get(name) if name in ("true", "false") else self._constant(name)

    def _call(self, name: str, values: list[Any]) -> Any:
        if name == "std::string":
            return values[0]
        if name not in _MESSAGES:
            raise NotRead(name)
        members = dict(zip(_MESSAGES[name], values, strict=False))
        calls = members.pop("calls", [])
        if "name" in members:
            calls = [(members.pop("name"), members.pop("arguments", ""))]
        return {**members, "calls": calls}

    def _constant(self, name: str) -> Any:
        if name.startswith("COMMON_"):
            return name
        match = re.search(rf"\b{name}\s*(=\s*|(?=\{{))", self._source)
        if match is None:
            raise NotRead(name)
        return self._value(_Tokens(self._source, match.end()))


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text.replace("\n", "\\n")))
    except (SyntaxError, ValueError) as error:
        raise NotRead(text) from error


def _message(options: dict[str, Any]) -> ExpectedAnswer:
    calls = tuple((name, arguments) for name, arguments in options.pop("calls", []))
    return ExpectedAnswer(options.pop("content", ""), options.pop("reasoning", ""), calls)


def tools_of(case: ChatCase) -> tuple[dict[str, Any], ...]:
    """Returns a case's tools as clients send them."""
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": json.loads(schema or "{}")},
        }
        for name, description, schema in case.options.get("tools", [])
    )


@cache
def read_cases() -> tuple[tuple[ChatCase, ...], int]:
    """Returns the cases in the sources, and how many there are that are not read."""
    found = list(_Reader(llama_templates.chat_tests().read_text()).cases())
    cases = tuple(case for case in found if case is not None)
    return cases, len(found) - len(cases)
