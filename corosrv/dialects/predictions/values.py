"""Checks inputs of predictions against the OpenAPI document that clients see, and converts their numbers.

Authors' regular expressions search clients' texts. One that might never end must not stop the server, so it runs in a
process with a time limit.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gevent.lock import BoundedSemaphore
from gevent.subprocess import PIPE, Popen, TimeoutExpired

from corosrv.base.errors import InvalidInput, TooBusy
from corosrv.base.waits import call_in_thread
from corosrv.contracts.settings import child_environment
from corosrv.workers.worker.predictor import STARS
from corosrv.workers.worker.values.addresses import is_address

TIME_LIMIT = 1.0  # seconds of the processor for all slow patterns of one input
PATIENCE = 20.0  # seconds to wait for the process, which may be paused or share the processor
_AT_ONCE = 2  # processes
_MAX_STEPS = 500_000  # some 10 ms
_PLAIN_GROUPS = re.compile(r"\((?!\?)|\(\?:|\(\?P<\w+>")
_ESCAPES_AND_SETS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEATS = re.compile(r"[*+?]|\{(\d*),(\d*)\}")
# In a process of its own, which the timer's signal can end: nothing else can end a match.
_PROGRAM = """\
import json, re, signal, sys
seconds, pairs = json.load(sys.stdin)
signal.setitimer(signal.ITIMER_PROF, seconds)
for pattern, text in pairs:
    print(int(re.search(pattern, text) is not None), flush=True)
"""
_USED_UP = -signal.SIGPROF


class Patterns:
    """Searches texts for patterns: short work at once, the rest in a process with a time limit."""

    def __init__(self) -> None:
        self._processes = BoundedSemaphore(_AT_ONCE)

    def try_search(self, pattern: str, text: str) -> bool | None:
        """Returns whether the pattern is in the text, or None if the search might take long and needs `search`."""
        if _cost(pattern).steps(len(text)) > _MAX_STEPS:
            return None
        return re.search(pattern, text) is not None

    def search(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Returns for each pair whether the pattern is in the text; None if the processor time ran out first. Waits.

        Raises TooBusy if the process could not use its processor time.
        """
        if not pairs:
            return []
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
        with self._processes, Popen(command, stdin=PIPE, stdout=PIPE, env=child_environment()) as process:
            try:
                output, _ = process.communicate(json.dumps((TIME_LIMIT, pairs)).encode(), timeout=PATIENCE)
            except TimeoutExpired:
                raise TooBusy("the patterns of the input could not be checked in time; try again") from None
            finally:
                process.kill()
        answers: list[bool | None] = [line == b"1" for line in output.split()]
        if len(answers) < len(pairs) and process.returncode != _USED_UP:
            raise TooBusy("the process that checks the patterns of the input ended; try again")
        return answers + [None] * (len(pairs) - len(answers))


class _Cost:
    """An upper bound of the steps that a search takes, from the pattern's repetitions alone."""

    def __init__(self, pattern: str) -> None:
        skeleton = _ESCAPES_AND_SETS.sub("x", pattern)
        groups = len(re.findall(r"\(", skeleton))
        has_odd_groups = len(_PLAIN_GROUPS.findall(skeleton)) != groups
        refers_back = re.search(r"\\[1-9]|\(\?P=", pattern) is not None
        # A repeated group may match the same text in exponentially many ways.
        self._is_boundless = has_odd_groups or refers_back or re.search(r"\)[*+{]", skeleton) is not None
        self._max_repeats = [self._max_of(repeat) for repeat in _REPEATS.finditer(skeleton)]
        self._branches = skeleton.count("|") + 1
        self._is_anchored = self._branches == 1 and pattern.startswith(("^", r"\A"))

    @staticmethod
    def _max_of(repeat: re.Match[str]) -> float:
        if repeat[0] == "?":
            return 1
        return float(repeat[2]) if repeat[2] else math.inf

    def steps(self, length: int) -> float:
        if self._is_boundless:
            return math.inf
        ways = math.prod(min(most, length) + 1 for most in self._max_repeats) * self._branches
        return ways if self._is_anchored else ways * (length + 1)


@lru_cache(maxsize=256)
def _cost(pattern: str) -> _Cost:
    return _Cost(pattern)


MAX_FAULTS = 100  # reported for one input
Schema = dict[str, Any]
Place = list[str | int]  # within the input


@dataclass
class Faults:
    """Faults of one input, in the form of a 422's `detail`, and the pattern searches that are still to be run."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    unsettled: list[tuple[Place, str, str]] = field(default_factory=list)  # place, pattern, text

    def add(self, place: Place, message: str, kind: str = "value_error") -> None:
        if len(self.entries) < MAX_FAULTS:
            self.entries.append({"loc": ["body", "input", *place], "msg": message, "type": kind})

    def add_all(self, faults: Faults) -> None:
        self.entries += faults.entries[: MAX_FAULTS - len(self.entries)]


class Values:
    """Checks values against schemas that corosrv.workers.worker.signatures.signature wrote. Messages never hold a
    value.
    """

    def __init__(self, components: dict[str, Schema], patterns: Patterns) -> None:
        self._components = components
        self._patterns = patterns
        self._checks: dict[str, Callable[[Schema, Any, Place, Faults], Any]] = {
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": self._boolean,
            "array": self._array,
            "object": self._object,
        }

    def check(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        """Returns the value with numbers of the schema's type; adds a fault for each part that does not fit."""
        if "allOf" in schema:
            if value is None and schema.get("nullable"):
                return None
            return self.check(schema["allOf"][0], value, place, faults)
        if "$ref" in schema:
            return self.check(self._components[schema["$ref"].rpartition("/")[2]], value, place, faults)
        if value is None and (schema.get("nullable") or not any(key in schema for key in ("type", "enum", "anyOf"))):
            return None
        if "enum" in schema:
            return _check_choice(schema, value, place, faults)
        if "anyOf" in schema:
            return self._any_of(schema, value, place, faults)
        check_type = self._checks.get(schema.get("type", ""))
        return value if check_type is None else check_type(schema, value, place, faults)

    def settle(self, faults: Faults) -> None:
        """Runs the pattern searches that `check` left. Waits if there are any."""
        answers = self._patterns.search([(pattern, text) for _, pattern, text in faults.unsettled])
        for (place, pattern, _), is_found in zip(faults.unsettled, answers, strict=True):
            if is_found is None:
                faults.add(place, f"could not be matched with the pattern {pattern} in time")
            elif not is_found:
                faults.add(place, _unmatched(pattern))

    def _string(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if not isinstance(value, str):
            faults.add(place, "must be a string")
            return value
        if schema.get("format") == "uri" and not is_address(value):
            faults.add(place, "must be an http, https or data URL")
        if len(value) < schema.get("minLength", 0):
            faults.add(place, f"must have at least {schema['minLength']} characters")
        if len(value) > schema.get("maxLength", math.inf):
            faults.add(place, f"must have at most {schema['maxLength']} characters")
        elif "pattern" in schema:
            self._pattern(schema["pattern"], value, place, faults)
        return value

    def _pattern(self, pattern: str, text: str, place: Place, faults: Faults) -> None:
        is_found = self._patterns.try_search(pattern, text)
        if is_found is None:
            faults.unsettled.append((place, pattern, text))
        elif not is_found:
            faults.add(place, _unmatched(pattern))

    def _integer(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int:
            faults.add(place, "must be an integer")
            return value
        return _check_range(schema, value, place, faults)

    def _number(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if type(value) not in (int, float) or not _is_double(value):
            faults.add(place, "must be a number")
            return value
        return _check_range(schema, float(value), place, faults)

    def _boolean(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if not isinstance(value, bool):
            faults.add(place, "must be true or false")
        return value

    def _array(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if not isinstance(value, list):
            faults.add(place, "must be a list")
            return value
        items = schema["items"]
        return [self.check(items, member, [*place, index], faults) for index, member in enumerate(value)]

    def _object(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        if not isinstance(value, dict):
            faults.add(place, "must be an object")
            return value
        if (member_schema := schema.get("additionalProperties")) is None:
            return value
        return {key: self.check(member_schema, member, [*place, key], faults) for key, member in value.items()}

    def _any_of(self, schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
        """Checks against each member, those of the value's own type first; the first that fits counts.

        If none fits, adds the faults of the nearest one.
        """
        kinds = _kinds(value)
        limits = {key: schema[key] for key in _LIMITS if key in schema}
        near: list[Faults] = []
        for member in sorted(
            schema["anyOf"], key=lambda member: (*kinds, member.get("type")).index(member.get("type"))
        ):
            attempt = Faults()
            checked = self.check(member | limits, value, place, attempt)
            if not attempt.entries:
                faults.unsettled += attempt.unsettled
                return checked
            near += [attempt] if member.get("type") in kinds else []
        if near:
            faults.add_all(near[0])
        else:
            names = dict.fromkeys(member.get("type", "one of the choices") for member in schema["anyOf"])
            faults.add(place, f"must be of type {' or '.join(names)}")
        return value


_LIMITS = ("minimum", "maximum", "minLength", "maxLength", "pattern")


def _kinds(value: Any) -> tuple[str, ...]:
    """Returns the JSON types that accept such a value, the best first."""
    match value:
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number", "integer")
        case str():
            return ("string",)
    return ("array",) if isinstance(value, list) else ("object",)


def _is_double(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _check_range(schema: Schema, value: float, place: Place, faults: Faults) -> float:
    if value < schema.get("minimum", -math.inf):
        faults.add(place, f"must be at least {schema['minimum']}")
    if value > schema.get("maximum", math.inf):
        faults.add(place, f"must be at most {schema['maximum']}")
    return value


def _check_choice(schema: Schema, value: Any, place: Place, faults: Faults) -> Any:
    for choice in schema["enum"]:
        if choice == value and isinstance(choice, bool) == isinstance(value, bool):
            return choice
    choices = ", ".join(json.dumps(choice, ensure_ascii=False) for choice in schema["enum"][:20])
    faults.add(place, f"must be one of {choices}{', ...' if len(schema['enum']) > 20 else ''}")
    return value


def _unmatched(pattern: str) -> str:
    return f"must match the pattern {pattern}"


log = logging.getLogger("corosrv.predictions")

_LARGE = 1 << 15  # bytes of a request; beyond them a check is worth a thread: it takes a microsecond for four bytes


class InputSchema:
    """The schema of one predictor's inputs. Any number of greenlets may use it at once."""

    def __init__(self, document: dict[str, Any]) -> None:
        """`document` as corosrv.workers.worker.signatures.signature makes it."""
        self.document = document
        self._components: dict[str, Any] = document["components"]["schemas"]
        self._schema = self._components["Input"]
        self._properties: dict[str, Any] = self._schema["properties"]
        self._secrets = {name: schema for name, schema in self._properties.items() if _has_secret(schema)}
        self._values = Values(self._components, Patterns())

    @property
    def is_streaming(self) -> bool:
        """True if the predictor has opted in to event streams."""
        return bool(self.document["paths"]["/predictions"]["post"].get("x-cog-streaming"))

    def check(self, input: object, n_bytes: int = 0) -> dict[str, Any]:
        """Returns the input for the worker: unknown fields dropped, numbers converted, defaults and nulls filled in.

        Raises InvalidInput with all faults. Waits only for a request of more than 32 KiB, if `n_bytes` says so, and
        for a pattern that might take long; other greenlets may run meanwhile.
        """
        if not isinstance(input, dict):
            raise InvalidInput([{"loc": ["body", "input"], "msg": "must be an object", "type": "value_error"}])
        faults = Faults()
        checked: dict[str, Any] = (
            call_in_thread(self._fields, input, faults) if n_bytes > _LARGE else self._fields(input, faults)
        )
        self._values.settle(faults)
        if faults.entries:
            raise InvalidInput(faults.entries)
        return checked

    def mask(self, input: dict[str, Any]) -> dict[str, Any]:
        """Returns the input with stars for secrets: the only form of it that clients get back."""
        secrets = self._secrets
        return {name: _masked(secrets[name], value) if name in secrets else value for name, value in input.items()}

    def _fields(self, input: dict[str, Any], faults: Faults) -> dict[str, Any]:
        if unknown := [name for name in input if name not in self._properties]:
            log.warning(
                "dropped inputs that the predictor does not have: %s", ", ".join(map(repr, unknown[:20]))[:1000]
            )
        checked = {}
        for name, schema in self._properties.items():
            if name in input:
                checked[name] = self._field(name, schema, input[name], faults)
            elif name in self._schema.get("required", ()):
                faults.add([name], "Field required", "value_error.missing")
            else:
                checked[name] = copy.deepcopy(schema.get("default"))
        return checked

    def _field(self, name: str, schema: dict[str, Any], value: Any, faults: Faults) -> Any:
        # The author's default may be a file of the worker's, which nobody else may name; a client's form repeats it.
        if "default" in schema and value == schema["default"] and _is_text(value):
            return value
        return self._values.check(schema, value, [name], faults)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(member, str) for member in value))


def _has_secret(schema: dict[str, Any]) -> bool:
    """Returns whether a value of this schema is a secret, or has one in it."""
    inner = (*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties"))
    return _is_secret(schema) or any(_has_secret(part) for part in inner if isinstance(part, dict))


def _is_secret(schema: dict[str, Any]) -> bool:
    return any(member.get("x-cog-secret") for member in (schema, *schema.get("anyOf", ())))


def _masked(schema: dict[str, Any], value: Any) -> Any:
    """Masks everything but null under a secret's schema, whether it fits or not."""
    if value is None:
        return None
    if _is_secret(schema):
        return STARS
    for member in (schema, *schema.get("anyOf", ())):
        inner = member.get("items" if isinstance(value, list) else "additionalProperties")
        if isinstance(inner, dict) and _has_secret(inner):
            if isinstance(value, list):
                return _all_masked(inner, value)
            if isinstance(value, dict):
                return dict(zip(value, _all_masked(inner, value.values()), strict=True))
    return value


def _all_masked(schema: dict[str, Any], values: Collection[Any]) -> list[Any]:
    if _is_secret(schema):  # as nearly always: there may be 100,000 of them
        return [None if value is None else STARS for value in values]
    return [_masked(schema, value) for value in values]
