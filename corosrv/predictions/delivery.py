"""One POST of a webhook: its time limit, its redirects, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from urllib.parse import urljoin, urlsplit

import gevent
import urllib3
from gevent.monkey import is_module_patched
from gevent.threadpool import ThreadPool

import corosrv

TRY_SECONDS = 30.0
MAX_RETRY_AFTER = 300.0  # seconds
MAX_REDIRECTS = 5
# At once, to one receiver; the next ones wait within their own time, so that a dead receiver keeps others' way free.
CONNECTIONS = 64
_THREADS = 32  # where posts need some
_LAST_SECONDS = 1.0  # that threads get to end
_REPEATED = frozenset({429, 500, 502, 503, 504})
_KEEPS_METHOD = frozenset({307, 308})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one try. `status` is None where there was no answer, for which `reason` has words."""

    status: int | None
    reason: str = ""
    retry_after: float = 0.0  # seconds that the receiver wants to be left alone

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_worth_repeating(self) -> bool:
        return self.status is None or self.status in _REPEATED


def is_http_url(text: str) -> bool:
    """Absolute, with a host, and nothing that could break out of a request line."""
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def retry_after(text: str | None, now: float) -> float:
    """Seconds from a Retry-After field, which holds such or a date; 300 at most. `now`: Unix time."""
    if not text:
        return 0.0
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


class Poster:
    """Posts JSON; other greenlets run meanwhile, also where sockets are not monkey-patched. Owns its connections."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._http = urllib3.PoolManager(num_pools=256, maxsize=CONNECTIONS, block=True, retries=False)
        self._threads: ThreadPool | None = None

    def post(
        self, url: str, body: Sequence[bytes], headers: Mapping[str, str], seconds: float = TRY_SECONDS
    ) -> Outcome:
        """Posts a body that is in pieces. Waits, `seconds` at most."""
        if is_module_patched("socket"):
            with gevent.Timeout(seconds, False):
                return self._post(url, body, headers, seconds)
            return Outcome(None, f"no answer within {seconds:g} s")
        if self._threads is None:
            self._threads = ThreadPool(_THREADS)
        outcome: Outcome = self._threads.apply(self._post, (url, body, headers, seconds))
        return outcome

    def _post(self, url: str, body: Sequence[bytes], headers: Mapping[str, str], seconds: float) -> Outcome:
        deadline = time.monotonic() + seconds
        try:
            origin = _origin(url)
            for _ in range(MAX_REDIRECTS + 1):
                sent = self._headers(headers, sum(map(len, body)), is_home=_origin(url) == origin)
                outcome, location = self._ask(url, body, sent, deadline - time.monotonic())
                if outcome.status not in _KEEPS_METHOD or location is None:
                    return outcome
                url = urljoin(url, location)
                if not is_http_url(url):
                    return outcome
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}")
        return outcome

    def _headers(self, headers: Mapping[str, str], n_bytes: int, is_home: bool) -> dict[str, str]:
        own = {
            "Content-Type": "application/json",
            "User-Agent": f"corosrv/{corosrv.__version__}",
            "Content-Length": str(n_bytes),
            # A kept connection may be closed by the receiver just now, and most events are tried once.
            "Connection": "close",
        }
        if self._token and is_home:  # the token is not for whomever a receiver points to
            own["Authorization"] = f"Bearer {self._token}"
        return {**headers, **own}

    def _ask(
        self, url: str, body: Sequence[bytes], headers: Mapping[str, str], seconds: float
    ) -> tuple[Outcome, str | None]:
        """One request; also where the answer sends it on to."""
        if seconds <= 0:
            return Outcome(None, "no time was left"), None
        answer = self._http.request(
            "POST",
            url,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(total=seconds),
            pool_timeout=seconds,
            redirect=False,
            preload_content=False,
        )
        try:
            wanted = retry_after(answer.headers.get("Retry-After"), int(time.time()))
            return Outcome(answer.status, f"status {answer.status}", wanted), answer.headers.get("Location")
        finally:
            answer.close()  # nobody reads what it says
            answer.release_conn()

    def close(self) -> None:
        """Twice is harmless."""
        self._http.clear()
        threads, self._threads = self._threads, None
        if threads is not None:
            with gevent.Timeout(_LAST_SECONDS, False):
                threads.kill()  # each ends with the post that it is at


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme.lower())
