"""Reads what an operator says of an upstream: its URL, and how it is to be used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from corosrv.base.errors import Refused, SettingsError
from corosrv.fleet.upstreams.aborter import AbortKind

DEFAULT_CONCURRENCY = 32  # of an upstream that does not tell how many it runs
MAX_CONCURRENCY = 65_536
MAX_WEIGHT = 1000.0
MAX_URL = 2048  # characters
MAX_HOST = 253
MAX_LABEL = 63  # of a host's name
Number = TypeVar("Number", int, float)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSWORD = re.compile(r"(?<=//).*@", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
_NUMBERS = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")  # such a name is an address, or none
_OPTIONS = ("concurrency", "model", "weight", "api_key_env", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSpec:
    """Says where an upstream is, and how much it gets. Raises Refused, which names the field at fault."""

    url: str  # without a path's last slash; the same URL is the same upstream
    models: tuple[str, ...] = ()  # that it serves; empty: those that it lists itself
    concurrency: int | None = None  # calls that it runs at once; None: as many as it says, or DEFAULT_CONCURRENCY
    weight: float = 1.0  # its share of the calls, beside those of others
    api_key_env: str = ""  # the environment variable that holds the key to send; empty: no key of its own
    labels: Mapping[str, str] = field(default_factory=dict)
    abort: AbortKind = AbortKind.AUTO  # how it is told that a request is of no use any more

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normal_url(self.url))
        if self.concurrency is not None and not 1 <= self.concurrency <= MAX_CONCURRENCY:
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
        concurrency=_number("concurrency", options["concurrency"], int) if "concurrency" in options else None,
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
    if len(text) > MAX_URL:
        raise Refused(f"the URL has {len(text)} characters; at most {MAX_URL} are taken", "url")
    if not text.isprintable() or " " in text:
        raise Refused("the URL holds a space or a control character", "url")
    try:
        parts = urlsplit(text)
        name, scheme = parts.hostname or "", parts.scheme.lower()
    except ValueError:  # half a bracket
        name = scheme = ""
    if scheme not in ("http", "https") or not name:
        raise Refused(f"{_PASSWORD.sub('', text)[:200]!r} is no http or https URL", "url")
    if parts.username is not None or parts.password is not None:
        raise Refused("the URL must not hold a password: name a variable by api_key_env", "url")
    if parts.query or parts.fragment:
        raise Refused("the URL must end before its query", "url")
    if not parts.path.isascii():
        raise Refused("the URL's path must be ASCII: write other characters as %XX", "url")
    host, port = _host(name), _port(parts)
    place = f"[{host}]" if ":" in host else host
    if port not in (None, 80 if scheme == "http" else 443):
        place = f"{place}:{port}"
    return urlunsplit((scheme, place, parts.path.rstrip("/"), "", ""))


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise Refused("the URL's port must be a number from 1 to 65535", "url")
    return port


def _host(name: str) -> str:
    """Returns an address, or a host's name as DNS has it: in IDNA where it is not ASCII."""
    if ":" in name or _NUMBERS.fullmatch(name):
        try:
            return str(ip_address(name))
        except ValueError:
            raise Refused(f"the URL's host {name[:60]!r} is no IP address", "url") from None
    try:
        host = name if name.isascii() else name[:MAX_HOST].encode("idna").decode("ascii")
    except UnicodeError:
        raise Refused(f"the URL's host {name[:60]!r} cannot be written in IDNA", "url") from None
    labels = host.removesuffix(".").split(".")
    if max(len(host), len(name)) > MAX_HOST or max(map(len, labels)) > MAX_LABEL:
        words = f"may have {MAX_HOST} characters, and {MAX_LABEL} between two dots"
        raise Refused(f"the URL's host {name[:60]!r} is too long: it {words}", "url")
    if not all(map(_LABEL.fullmatch, labels)):
        raise Refused(f"the URL's host {name[:60]!r} is no name of a host", "url")
    return host


def parse_all(urls: Iterable[str]) -> list[UpstreamSpec]:
    """Parses the upstreams of the start. Raises SettingsError, which names the one at fault."""
    specs = []
    for number, url in enumerate(urls, 1):
        try:
            specs.append(parse(url))
        except Refused as error:  # without the URL itself, which may hold a password
            raise SettingsError(f"COROSRV_UPSTREAM: upstream number {number}: {error}") from None
    return specs
