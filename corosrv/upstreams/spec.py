"""Reads what an operator says of an upstream: its URL, and how it is to be used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from corosrv.errors import Refused
from corosrv.outgoing.urls import is_http_url
from corosrv.upstreams.abort import AbortKind

DEFAULT_CONCURRENCY = 8
MAX_CONCURRENCY = 65_536
MAX_WEIGHT = 1000.0
Number = TypeVar("Number", int, float)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSWORD = re.compile(r"(?<=//).*@", re.DOTALL)
_OPTIONS = ("concurrency", "model", "weight", "api_key_env", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSpec:
    """Says where an upstream is, and how much it gets. Raises Refused, which names the field at fault."""

    url: str  # without a path's last slash; the same URL is the same upstream
    models: tuple[str, ...] = ()  # that it serves; empty: those that it lists itself
    concurrency: int = DEFAULT_CONCURRENCY  # calls that it runs at once
    weight: float = 1.0  # its share of the calls, beside those of others
    api_key_env: str = ""  # the environment variable that holds the key to send; empty: no key of its own
    labels: Mapping[str, str] = field(default_factory=dict)
    abort: AbortKind = AbortKind.AUTO  # how it is told that a request is of no use any more

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normal_url(self.url))
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise Refused(f"concurrency must be from 1 to {MAX_CONCURRENCY}, not {self.concurrency}", "concurrency")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise Refused(f"weight must be above 0 and at most {MAX_WEIGHT:g}, not {self.weight:g}", "weight")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise Refused("api_key_env must be the name of an environment variable", "api_key_env")
        if not all(self.models):
            raise Refused("model must not be empty", "model")


def parse(text: str) -> UpstreamSpec:
    """Reads an upstream as the command line has it: `http://a:8080?concurrency=16&model=small&weight=2`.

    Raises Refused, which says what is wrong.
    """
    url, _, query = text.strip().partition("?")
    options: dict[str, str] = {}
    models: list[str] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise Refused(f"{name[:60]!r} is no option of an upstream: those are {', '.join(_OPTIONS)}", "url")
        if name == "model":
            models.append(value)
        elif name in options:
            raise Refused(f"{name} is given twice", name)
        else:
            options[name] = value
    return UpstreamSpec(
        url=url,
        models=tuple(models),
        concurrency=_number("concurrency", options.get("concurrency", str(DEFAULT_CONCURRENCY)), int),
        weight=_number("weight", options.get("weight", "1"), float),
        api_key_env=options.get("api_key_env", ""),
        abort=abort_kind(options.get("abort", AbortKind.AUTO.value)),
    )


def abort_kind(text: str) -> AbortKind:
    """Returns the kind of this name. Raises Refused."""
    try:
        return AbortKind(text)
    except ValueError:
        names = ", ".join(kind.value for kind in AbortKind)
        raise Refused(f"abort must be one of {names}, not {text[:60]!r}", "abort") from None


def _number(name: str, text: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise Refused(f"{name} must be a number, not {text[:60]!r}", name) from None


def _normal_url(text: str) -> str:
    """Returns the URL by which an upstream is known."""
    if not is_http_url(text):
        raise Refused(f"{_PASSWORD.sub('', text)[:200]!r} is no http or https URL", "url")
    parts = urlsplit(text)
    if parts.username is not None or parts.password is not None:
        raise Refused("the URL must not hold a password: name a variable by api_key_env", "url")
    if parts.query or parts.fragment:
        raise Refused("the URL must end before its query", "url")
    scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    place = f"[{host}]" if ":" in host else host
    if port not in (None, 80 if scheme == "http" else 443):
        place = f"{place}:{port}"
    return urlunsplit((scheme, place, parts.path.rstrip("/"), "", ""))
