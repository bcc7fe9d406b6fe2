"""Uploads of output files: each is put under the operator's URL."""

from __future__ import annotations

import os
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import gevent
import urllib3
from gevent.monkey import is_module_patched

import corosrv
from corosrv.base.errors import OutputFailed, RedirectRefused
from corosrv.base.outgoing import KEEPING_METHOD, Redirects
from corosrv.base.waits import call_in_thread

TIME_LIMIT = 25.0  # seconds for one file


class Uploads:
    """Puts files below one URL. Used by any number of greenlets at once."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._pool = urllib3.PoolManager(maxsize=8, headers={"User-Agent": f"corosrv/{corosrv.__version__}"})

    def upload(self, path: str, name: str, mime_type: str) -> str:
        """Uploads a file and returns its address. Waits. Raises OutputFailed with the status or the cause."""
        too_long = OutputFailed(f"the output file {name} could not be uploaded within {TIME_LIMIT:g} s")
        with gevent.Timeout(TIME_LIMIT, too_long):
            if is_module_patched("socket"):  # then this very greenlet may wait for the network
                return self._send_along_redirects(path, name, mime_type)
            address: str = call_in_thread(self._send_along_redirects, path, name, mime_type)
            return address

    def _send_along_redirects(self, path: str, name: str, mime_type: str) -> str:
        url = urlunsplit(self._url._replace(path=f"{self._url.path.rstrip('/')}/{quote(name, safe='')}"))
        try:
            redirects = Redirects(url, KEEPING_METHOD)
            answer = self._send(url, path, mime_type)
            while redirects.follow(answer.status, answer.headers.get("Location")):
                answer = self._send(redirects.url, path, mime_type)
            return _final(answer, redirects.url, name)
        except urllib3.exceptions.HTTPError as error:
            raise OutputFailed(f"the output file {name} could not be uploaded: {type(error).__name__}") from error
        except OSError as error:
            raise OutputFailed(f"the output file {name} cannot be read: {error.strerror}") from error
        except RedirectRefused as error:
            raise OutputFailed(f"the output file {name} could not be uploaded: {error}") from error

    def _send(self, url: str, path: str, mime_type: str) -> urllib3.BaseHTTPResponse:
        headers = {**self._pool.headers, "Content-Type": mime_type, "Content-Length": str(os.path.getsize(path))}
        with open(path, "rb") as file:
            return self._pool.request(
                "PUT", url, body=file, headers=headers, timeout=TIME_LIMIT, retries=False, redirect=False
            )


def _final(answer: urllib3.BaseHTTPResponse, url: str, name: str) -> str:
    if not 200 <= answer.status < 300:
        raise OutputFailed(f"the output file {name} could not be uploaded: status {answer.status}")
    final = urlsplit(urljoin(url, answer.headers.get("Location", "")))
    return urlunsplit(final._replace(query="", fragment=""))
