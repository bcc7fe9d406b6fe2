"""One download over HTTP, within a time limit, along a few redirects. Imported when there is one: it takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from corosrv.base import __version__
from corosrv.base.errors import InputFailed, RedirectRefused
from corosrv.base.outgoing import ALL, Redirects
from corosrv.workers.worker.values.addresses import web_name

_PIECE = 1 << 16  # bytes


def download(
    url: str, create: Callable[[str], BinaryIO], agent: str | None, ends_at: float, is_over: Callable[[], bool]
) -> None:
    """Writes to the file that `create` opens for the name in the URL's last part.

    Waits, until `ends_at` of the monotonic clock at most; stops early once `is_over` returns True. Raises InputFailed
    with the status or the cause.
    """
    try:
        agent = agent or f"corosrv/{__version__}"
        with _answer(url, agent, ends_at) as answer, create(web_name(url)) as file:
            while not is_over() and (piece := answer.read(_PIECE)):
                file.write(piece)
                _seconds_left(ends_at)
    except RedirectRefused as error:
        raise InputFailed(f"cannot be fetched: {error}") from error
    except urllib3.exceptions.HTTPError as error:
        raise InputFailed(f"cannot be fetched: {_cause(error)}") from error
    except OSError as error:
        raise InputFailed(f"cannot be written: {error.strerror}") from error


@contextmanager
def _answer(url: str, agent: str, ends_at: float) -> Iterator[urllib3.BaseHTTPResponse]:
    """Yields the answer at the end of all redirects, with status 2xx; closes its connection after that."""
    redirects = Redirects(url, ALL)
    while True:
        with _pool(redirects.url) as pool:
            timeout = urllib3.Timeout(total=_seconds_left(ends_at))
            answer = pool.request(
                "GET",
                redirects.url,
                headers=_headers(redirects.url, agent),
                redirect=False,
                retries=False,
                timeout=timeout,
                preload_content=False,
            )
            try:
                if not redirects.follow(answer.status, answer.headers.get("Location")):
                    _check(answer)
                    yield answer
                    return
            finally:
                answer.close()


def _headers(url: str, agent: str) -> dict[str, str]:
    """Makes the header fields, with the URL's own login: that of one host never goes to another."""
    parts = urlsplit(url)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return {**urllib3.make_headers(basic_auth=login), "User-Agent": agent}


def _pool(url: str) -> urllib3.PoolManager:
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.netloc):
        return urllib3.ProxyManager(proxy)
    return urllib3.PoolManager()


def _check(answer: urllib3.BaseHTTPResponse) -> None:
    if not 200 <= answer.status < 300:
        raise InputFailed(f"cannot be fetched: status {answer.status} {answer.reason or ''}".rstrip())


def _seconds_left(ends_at: float) -> float:
    """Returns the seconds until `ends_at`. Raises InputFailed if none are left."""
    seconds = ends_at - time.monotonic()
    if seconds <= 0:
        raise InputFailed("cannot be fetched: it took too long")
    return seconds


def _cause(error: BaseException) -> str:
    """Describes an error without the address, which may hold a password."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    words = {
        urllib3.exceptions.TimeoutError: "it took too long",
        urllib3.exceptions.NameResolutionError: "the host is unknown",
        urllib3.exceptions.NewConnectionError: "no connection",
        urllib3.exceptions.SSLError: f"TLS: {cause}",
        urllib3.exceptions.ProtocolError: f"the connection broke: {cause}",
    }
    return next((text for kind, text in words.items() if isinstance(error, kind)), type(error).__name__)
