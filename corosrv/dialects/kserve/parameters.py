"""Reads the parameters of a request that are for the front; handlers do not see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.job import DEFAULT_PRIORITY, FIRST_PRIORITY, LAST_PRIORITY
from corosrv.formats.tensors import Parameter

_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class FrontParameters:
    """Says how a call is to be made and answered. `timeout_us`: microseconds for the whole call; None: no limit."""

    timeout_us: int | None = None
    priority: int = 0  # 1 runs first, 9 last; 0 leaves it to the server
    is_binary: bool = False  # outputs that say nothing else come in the binary tail
    wants_empty_final: bool = False  # a stream of gRPC ends in an answer without outputs, if no other was final


_NONE = FrontParameters()


def split_parameters(parameters: Mapping[str, Parameter]) -> tuple[FrontParameters, Mapping[str, Parameter]]:
    """Returns what a request's parameters ask of the front, and those that are left for the handler.

    Raises Refused for a wrong type, and for a number out of range.
    """
    if not parameters:
        return _NONE, parameters
    for name, value in parameters.items():
        if type(value) is int and not _LEAST_INTEGER <= value <= _MOST_INTEGER:
            raise Refused(f"the parameter {name[:120]!r} needs more than 64 bits", f"parameters.{name[:120]}")
    front = FrontParameters(
        timeout_us=_timeout(parameters.get("timeout", 0)),
        priority=_priority(parameters.get("priority", 0)),
        is_binary=_boolean(parameters, "binary_data_output"),
        wants_empty_final=_boolean(parameters, "triton_enable_empty_final_response"),
    )
    return front, {name: value for name, value in parameters.items() if not _is_of_front(name)}


def _is_of_front(name: str) -> bool:
    return name in ("timeout", "priority", "binary_data_output") or name.startswith("triton_")


def _timeout(value: Parameter) -> int | None:
    """Returns microseconds, None for 0, which sets no limit. Raises Refused."""
    if type(value) is not int or value < 0:
        raise Refused("the parameter 'timeout' is no integer from 0 on", "timeout")
    return value or None


def _priority(value: Parameter) -> int:
    """Returns a priority, 0 where the request leaves it to the server. Raises Refused."""
    if type(value) is not int or not 0 <= value <= LAST_PRIORITY:
        words = f"from {FIRST_PRIORITY} (first) to {LAST_PRIORITY} (last), or 0 for {DEFAULT_PRIORITY}"
        raise Refused(f"the parameter 'priority' is no integer {words}", "priority")
    return value


def _boolean(parameters: Mapping[str, Parameter], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"the parameter {name!r} is neither true nor false", f"parameters.{name}")
    return value
