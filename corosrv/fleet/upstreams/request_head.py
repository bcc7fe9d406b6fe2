"""Writes the heads of HTTP/1.1 requests."""

from __future__ import annotations

import re

from corosrv.contracts.jobs.infer import Headers

# Of one hop, or made anew.
NOT_SENT = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[^\r\n\0]*")


def request_head(method: str, target: str, host: str, headers: Headers, n_body: int) -> bytes:
    """Writes a head, with the empty line at its end. Raises ValueError for what would not be one."""
    if not _NAME.fullmatch(method):
        raise ValueError(f"{method[:60]!r} is no method")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target[:60]!r} is no target of a request")
    lines = [f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n"]
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name of a field")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of {name[:60]} has more than one line")
        if name.lower() not in NOT_SENT:
            lines.append(f"{name}: {value}\r\n")
    if n_body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {n_body}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")
