"""Fetches images from the hosts that the operator allows, and from nowhere else.

A URL in a prompt is the client's, and this machine reaches what the client may not. So each host is on a list before it
is looked up, and the address that was checked is that of the connection: see corosrv.base.outgoing. An address that is
not public has to be on the list itself: no name leads there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

import gevent
import urllib3
from gevent.lock import BoundedSemaphore
from gevent.monkey import is_module_patched

from corosrv.base import __version__
from corosrv.base.errors import DestinationRefused, InvalidImage, NotSupported, RedirectRefused, TooBusy
from corosrv.base.outgoing import ALL, Destinations, Redirects, is_http_url, origin
from corosrv.base.waits.elsewhere import call_in_thread

MAX_URL = 4096  # characters
_AT_ONCE = 16  # of all requests, each of which may hold as many bytes as an image has
_AT_ONCE_OF_HOST = 4  # so that a host that does not answer leaves others their fetches
_PIECE = 65_536  # bytes of one read
_CODE = "image_not_fetched"


class _HostPermits:
    """Permits to fetch from one host, and how many fetches have or want one."""

    def __init__(self) -> None:
        self.semaphore = BoundedSemaphore(_AT_ONCE_OF_HOST)
        self.n_users = 0


@contextlib.contextmanager
def _hold_permit(permits: BoundedSemaphore, ends_at: float, refusal: str) -> Iterator[None]:
    """Holds a permit for the block. Waits for it; raises TooBusy where there is none in time."""
    if not permits.acquire(timeout=max(0.0, ends_at - time.monotonic())):
        raise TooBusy(refusal)
    try:
        yield
    finally:
        permits.release()


class ImageFetcher:
    """Fetches images by http and https; other greenlets run meanwhile. With no hosts allowed, refuses each URL."""

    def __init__(self, hosts: Sequence[str], max_bytes: int, seconds: float) -> None:
        self._destinations = Destinations(hosts, private_by_name=False) if hosts else None
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._http = urllib3.PoolManager(num_pools=16, retries=False)
        self._permits = BoundedSemaphore(_AT_ONCE)
        self._hosts: dict[str, _HostPermits] = {}  # that images are fetched from, or waited for, now

    def fetch(self, url: str, param: str) -> bytes:
        """Returns the content of a URL. Waits, for `seconds` at most.

        Raises NotSupported where nothing is fetched, InvalidImage for a URL that leads nowhere allowed and for what is
        too large, too slow or not there, and TooBusy.
        """
        if self._destinations is None:
            raise NotSupported(f"{param}: this server fetches no images: send a data URL", param, "unsupported_content")
        if len(url) > MAX_URL or not is_http_url(url) or urlsplit(url).username is not None:
            raise InvalidImage(f"{param}: an image's URL is a data URL, or one of http or https without a user", param)
        try:
            with self._permit(str(origin(url)[1])):
                return self._within_time(url, param)
        except (DestinationRefused, RedirectRefused) as error:
            raise InvalidImage(f"{param}: {error}", param, _CODE) from None
        except (urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError):
            # No more than that: it would tell clients about hosts and ports.
            raise InvalidImage(f"{param}: the image could not be fetched", param, _CODE) from None

    @contextlib.contextmanager
    def _permit(self, host: str) -> Iterator[None]:
        """Waits for a permit of the host, and only then for one of all: who waits for a host holds nothing of others.

        Raises TooBusy.
        """
        ends_at = time.monotonic() + self._seconds
        permits = self._hosts.setdefault(host, _HostPermits())
        permits.n_users += 1
        try:
            with (
                _hold_permit(permits.semaphore, ends_at, f"too many images of {host} are being fetched: try again"),
                _hold_permit(self._permits, ends_at, "too many images are being fetched: try again"),
            ):
                yield
        finally:
            permits.n_users -= 1
            if not permits.n_users:
                del self._hosts[host]

    def _within_time(self, url: str, param: str) -> bytes:
        with gevent.Timeout(self._seconds, self._too_slow(param)):
            if is_module_patched("socket"):  # then this very greenlet may wait for the network
                return self._fetch(url, param)
            return call_in_thread(self._fetch, url, param)

    def _fetch(self, url: str, param: str) -> bytes:
        deadline = time.monotonic() + self._seconds
        redirects = Redirects(url, ALL, leaves_site=False)
        while True:
            answer = self._ask(redirects.url, deadline)
            try:
                if not redirects.follow(answer.status, answer.headers.get("Location")):
                    return self._read(answer, deadline, param)
            finally:
                answer.close()

    def _ask(self, url: str, deadline: float) -> urllib3.BaseHTTPResponse:
        """Asks the first address that accepts a connection, of those that the host has and that are allowed."""
        assert self._destinations is not None
        _, host, port = origin(url)
        # Loopback addresses are not public: they have to be on the list.
        *earlier, last = self._destinations.look_up(str(host), port or 0, to_loopback=True)
        for address in earlier:
            with contextlib.suppress(urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
                return self._ask_at(address, url, deadline)
        return self._ask_at(last, url, deadline)

    def _ask_at(self, address: str, url: str, deadline: float) -> urllib3.BaseHTTPResponse:
        """Asks at an address that was checked; the name is for the host and its certificate."""
        scheme, host, port = origin(url)
        parts = urllib3.util.parse_url(url)
        by_name = {"server_hostname": host, "assert_hostname": host} if scheme == "https" else None
        return self._http.connection_from_host(address, port, scheme, by_name).urlopen(
            "GET",
            parts.request_uri,
            headers={
                "Host": parts.netloc or "",
                "User-Agent": f"corosrv/{__version__}",
                "Accept": "image/*",
                "Accept-Encoding": "identity",
                "Connection": "close",
            },
            timeout=urllib3.Timeout(total=deadline - time.monotonic()),  # refuses to wait for less than nothing
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )

    def _read(self, answer: urllib3.BaseHTTPResponse, deadline: float, param: str) -> bytes:
        if answer.status != 200:
            raise InvalidImage(f"{param}: the image's host answers with status {answer.status}", param, _CODE)
        content = bytearray()
        while piece := answer.read1(_PIECE):
            content += piece
            if len(content) > self._max_bytes:
                raise InvalidImage(f"{param}: the image has more than the {self._max_bytes} bytes allowed", param)
            if time.monotonic() > deadline:
                raise self._too_slow(param)
        return bytes(content)

    def _too_slow(self, param: str) -> InvalidImage:
        return InvalidImage(f"{param}: the image did not arrive within {self._seconds:g} s", param, _CODE)
