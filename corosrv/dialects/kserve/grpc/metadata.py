"""Metadata of a call: who calls, under which id, for how long, and which capability it asks for."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corosrv.base.errors import Unauthorized
from corosrv.contracts.jobs.infer import CapabilityTarget
from corosrv.dialects.kserve.capability_headers import parse_capability
from corosrv.web.http.keys import KeyRing

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
Pairs = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class CallMetadata:
    """Holds what a call says beside its message."""

    texts: Mapping[str, str]  # by name
    caller: str
    request_id: str
    capability: CapabilityTarget  # its query is empty if none is asked for

    def header(self, name: str) -> str | None:
        """Looks metadata up as REST's headers are named, in any case."""
        return self.texts.get(name.lower())


def check_key(pairs: Pairs, keys: KeyRing) -> str:
    """Returns a name for the caller, made from its key; "" where none is needed. Raises Unauthorized."""
    if not keys.are_needed:
        return ""
    key = next(filter(None, (_key(name, value) for name, value in pairs)), None)
    if key is None:
        raise Unauthorized("no API key: send it as the metadata 'authorization: Bearer KEY'")
    caller = keys.caller(key)
    if caller is None:
        raise Unauthorized("this API key is not known here")
    return caller


def read(pairs: Pairs, caller: str) -> CallMetadata:
    """Reads the metadata of a call whose key was checked. Raises Refused."""
    texts = {name: value for name, value in pairs if isinstance(value, str)}
    request_id = texts.get("x-request-id", "")
    return CallMetadata(
        texts=texts,
        caller=caller,
        request_id=request_id if _SANE_ID.fullmatch(request_id) else f"req_{secrets.token_hex(16)}",
        capability=parse_capability((name, value) for name, value in pairs if isinstance(value, str)),
    )


def _key(name: str, value: str | bytes) -> bytes | None:
    if isinstance(value, bytes):
        return None
    if name == "authorization":
        scheme, _, key = value.partition(" ")
        return key.encode() if scheme.lower() == "bearer" else None
    return value.encode() if name == "x-api-key" else None
