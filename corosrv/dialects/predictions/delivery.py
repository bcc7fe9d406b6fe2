"""One POST of a webhook: its time limit, its redirects and its outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException

import gevent
import urllib3
from gevent.monkey import is_module_patched
from gevent.threadpool import ThreadPool

import corosrv
from corosrv.base.errors import DestinationRefused, RedirectRefused
from corosrv.base.outgoing import KEEPING_METHOD, Destinations, Redirects, origin, retry_after

TRY_SECONDS = 30.0
# At once, to one receiver; the next ones wait within their own time, so that a dead receiver keeps others' way free.
CONNECTIONS = 64
_THREADS = 32  # where posts need some
_LAST_SECONDS = 1.0  # that threads get to end
_REPEATED = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one try. `status` is None if no answer came; `reason` says why."""

    status: int | None
    reason: str = ""
    retry_after: float = 0.0  # seconds that the receiver asks to wait before the next try
    is_refused: bool = False  # by this server: webhooks may not go to that destination

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_worth_repeating(self) -> bool:
        return not self.is_refused and (self.status is None or self.status in _REPEATED)


class Poster:
    """Posts JSON; other greenlets run meanwhile, also where sockets are not monkey-patched. Owns its connections."""

    def __init__(self, token: str = "", destinations: Destinations | None = None) -> None:
        self._token = token
        self.destinations = destinations or Destinations()
        self._http = urllib3.PoolManager(num_pools=256, maxsize=CONNECTIONS, block=True, retries=False)
        self._threads: ThreadPool | None = None

    def post(
        self,
        url: str,
        body: Sequence[bytes],
        headers: Mapping[str, str],
        *,
        to_loopback: bool = False,
        seconds: float = TRY_SECONDS,
    ) -> Outcome:
        """Posts a body that is in pieces. Waits, `seconds` at most. `to_loopback`: the URL may name this machine."""
        if is_module_patched("socket"):
            with gevent.Timeout(seconds, False):
                return self._post(url, body, headers, to_loopback, seconds)
            return Outcome(None, f"no answer within {seconds:g} s")
        if self._threads is None:
            self._threads = ThreadPool(_THREADS)
        outcome: Outcome = self._threads.apply(self._post, (url, body, headers, to_loopback, seconds))
        return outcome

    def _post(
        self, url: str, body: Sequence[bytes], headers: Mapping[str, str], to_loopback: bool, seconds: float
    ) -> Outcome:
        deadline = time.monotonic() + seconds
        redirects = Redirects(url, KEEPING_METHOD, leaves_site=False)
        fields = self._headers(headers, sum(map(len, body)))
        try:
            while True:
                addresses = self._look_up(redirects.url, to_loopback)
                outcome, location = self._ask(redirects.url, addresses, body, fields, deadline - time.monotonic())
                if not redirects.follow(outcome.status, location):
                    return outcome
        except RedirectRefused as error:
            return replace(outcome, reason=f"status {outcome.status}: {error}")
        except DestinationRefused as error:
            return Outcome(None, str(error), is_refused=True)
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}")

    def _look_up(self, url: str, to_loopback: bool) -> list[str]:
        _, host, port = origin(url)
        assert host is not None, "URLs of webhooks have hosts"
        return self.destinations.look_up(host, port or 0, to_loopback=to_loopback)

    def _headers(self, headers: Mapping[str, str], n_bytes: int) -> dict[str, str]:
        own = {
            "Content-Type": "application/json",
            "User-Agent": f"corosrv/{corosrv.__version__}",
            "Content-Length": str(n_bytes),
            # A kept connection may be closed by the receiver just now, and most events are tried once.
            "Connection": "close",
        }
        if self._token:
            own["Authorization"] = f"Bearer {self._token}"
        return {**headers, **own}

    def _ask(
        self, url: str, addresses: Sequence[str], body: Sequence[bytes], headers: Mapping[str, str], seconds: float
    ) -> tuple[Outcome, str | None]:
        """Posts to the first address that accepts a connection. Returns the outcome and the Location of a redirect."""
        if seconds <= 0:
            return Outcome(None, "no time was left"), None
        *earlier, last = addresses
        for address in earlier:
            try:
                return self._ask_at(address, url, body, headers, seconds)
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
                continue  # a host with several addresses need not be there at each
        return self._ask_at(last, url, body, headers, seconds)

    def _ask_at(
        self, address: str, url: str, body: Sequence[bytes], headers: Mapping[str, str], seconds: float
    ) -> tuple[Outcome, str | None]:
        parts = urllib3.util.parse_url(url)
        scheme, host, port = origin(url)
        # The address was checked: the connection goes there, and the name is for the receiver and its certificate.
        by_name = {"server_hostname": host, "assert_hostname": host} if scheme == "https" else None
        pool = self._http.connection_from_host(address, port, scheme, by_name)
        answer = pool.urlopen(
            "POST",
            parts.request_uri,
            body=body,
            headers={**headers, "Host": parts.netloc or ""},
            timeout=urllib3.Timeout(total=seconds),
            pool_timeout=seconds,  # type: ignore[arg-type]  # it may be a fraction
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            pause = retry_after(answer.headers.get("Retry-After"), int(time.time()))
            return Outcome(answer.status, f"status {answer.status}", pause), answer.headers.get("Location")
        finally:
            answer.close()  # nobody reads what it says
            answer.release_conn()

    def close(self) -> None:
        """Closes all connections and ends the threads. Waits for them a second at most. Later calls do nothing."""
        self._http.clear()
        threads, self._threads = self._threads, None
        if threads is not None:
            with gevent.Timeout(_LAST_SECONDS, False):
                threads.kill()  # each ends with the post that it is at
