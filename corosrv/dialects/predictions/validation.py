"""Checks the inputs of predictions against the OpenAPI document that clients see."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from typing import Any

from corosrv.base.errors import InvalidInput
from corosrv.base.waits import call_in_thread
from corosrv.dialects.predictions.values import Faults, Patterns, Values
from corosrv.workers.worker.predictor import STARS

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
