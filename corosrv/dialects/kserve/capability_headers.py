"""Reads which capability a call asks for from the headers of a request, or from the metadata of gRPC."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.infer import CapabilityTarget
from corosrv.workers.dispatch.capability import header_query

PREFER = "X-Prefer"  # weights of preferences, as a JSON object: {"tier=small": 2}
FUZZY = "X-Fuzzy"  # true or false

_WEIGHTS = msgspec.json.Decoder(dict[str, float])
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def parse_capability(headers: Iterable[tuple[str, str]]) -> CapabilityTarget:
    """Reads X-Capability-KEY, X-Prefer and X-Fuzzy; without any of the first, the query is empty.

    Raises Refused, which names the header.
    """
    headers = list(headers)
    others = {name.lower(): value for name, value in headers}
    return CapabilityTarget(
        header_query(headers), _weights(others.get(PREFER.lower())), _truth(others.get(FUZZY.lower()))
    )


def _weights(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        return _WEIGHTS.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise Refused(f'the header {PREFER} is no JSON object of weights, as {{"tier=small": 2}}', PREFER) from None


def _truth(text: str | None) -> bool:
    value = _TRUTHS.get((text or "false").strip().lower())
    if value is None:
        raise Refused(f"the header {FUZZY} is neither true nor false", FUZZY)
    return value
