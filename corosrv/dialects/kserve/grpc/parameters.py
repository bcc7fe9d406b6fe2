"""Parameters between InferParameter and Python's values, whose types they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corosrv.base.errors import HandlerFailed, Refused
from corosrv.formats.tensors import Parameter

_MOST_INT64 = 2**63 - 1
_MOST_UINT64 = 2**64 - 1


def read(parameters: Any) -> dict[str, Parameter]:
    """Returns the parameters of a message. Raises Refused for one without a value."""
    return {name: _value(name, parameters[name]) for name in parameters}


def _value(name: str, parameter: Any) -> Parameter:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise Refused(f"the parameter {name!r:.120} has no value", f"parameters.{name:.120}")
    value: Parameter = getattr(parameter, choice)
    return value


def write(parameters: Any, values: Mapping[str, Parameter]) -> None:
    """Adds values to the parameters of a message. Raises HandlerFailed for one that fits no field."""
    for name, value in values.items():
        try:
            setattr(parameters[name], _field(value), value)
        except (ValueError, TypeError) as error:  # as of text that is no Unicode
            raise HandlerFailed(f"the parameter {name!a:.120} of the answer cannot be sent") from error


def _field(value: Parameter) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "uint64_param" if _MOST_INT64 < value <= _MOST_UINT64 else "int64_param"
    return "double_param" if isinstance(value, float) else "string_param"
