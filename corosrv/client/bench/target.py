"""A server under load: its address, the form of a request to it, and the outcome of one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from corosrv.base.errors import BenchError
from corosrv.client.bench.plan import LatencyLimits


class FailureKind(str, Enum):
    """The ways in which a request can fail; reports show the values."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STATUS = "HTTP"
    CUT = "no finish reason"
    SHORT = "too few tokens"
    MALFORMED = "malformed answer"
    ERROR = "error event"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    detail: str
    status: int = 0

    @property
    def label(self) -> str:
        """The name under which equal failures are counted."""
        return f"{self.kind.value} {self.status}" if self.status else self.kind.value


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request from its due time to its end; times are of the monotonic clock.

    `arrivals` has the time of every read that brought text: events that come together are one arrival, because that is
    what a reader sees, however a server packs its tokens. `tokens` is what the usage says, or else the events.
    """

    began: float
    ended: float
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    events: int = 0
    tokens: int = 0
    prompt_tokens: int | None = None
    is_counted_by_usage: bool = False
    finish: str = ""
    failure: Failure | None = None
    is_arriving: bool = False  # one of the long prompts that come while other streams run

    @property
    def ttft(self) -> float | None:
        return self.arrivals[0] - self.began if self.arrivals else None

    @property
    def total(self) -> float:
        return self.ended - self.began

    def keeps(self, limits: LatencyLimits) -> bool:
        """Returns whether it has ended well, and within the limits."""
        if self.failure is not None:
            return False
        ttft = self.total if self.ttft is None else self.ttft
        n = max(self.tokens, len(self.arrivals)) - 1
        itl = (self.arrivals[-1] - self.arrivals[0]) / n if n > 0 and self.arrivals else 0.0
        return not ((limits.ttft and ttft > limits.ttft) or (limits.itl and itl > limits.itl))


PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server. `base` is the path before `/models` and the rest, `name` what reports call it."""

    name: str
    host: str
    port: int
    base: str = "/v1"
    is_tls: bool = False
    model: str = ""
    api_key: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.base}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Makes one whole request, with a connection of its own, so that the answer's end is never in doubt."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Connection: close"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + body


def parse(url: str, name: str = "", model: str = "", api_key: str = "") -> Target:
    """Parses the address of a server, with or without `/v1`. Raises BenchError."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise BenchError(f"{url} is not an address: {error}") from None
    if scheme not in PORTS or not host:
        raise BenchError(f"{url} is not the address of a server, such as http://127.0.0.1:8080")
    if parts.query or parts.fragment or parts.username:
        raise BenchError(f"{url}: only scheme, host, port and path can be given")
    if not api_key.isprintable() or not api_key.isascii():
        raise BenchError("the API key has characters that a header cannot hold")
    base = parts.path.rstrip("/")
    if not base.endswith("/v1"):
        base += "/v1"
    port = PORTS[scheme] if port is None else port
    return Target(name or f"{host}:{port}", host, port, base, scheme == "https", model, api_key)
