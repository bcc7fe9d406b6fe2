"""Redirects: where a request goes on to, for how long, and which redirects are not followed."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urljoin

from corosrv.base.errors import RedirectRefused
from corosrv.base.outgoing.urls import is_http_url, is_same_site

MAX_REDIRECTS = 5
ALL = frozenset({301, 302, 303, 307, 308})
KEEPING_METHOD = frozenset({307, 308})  # and the body


class Redirects:
    """The way of one request: to its URL, and on to wherever answers send it.

    `while redirects.follow(answer.status, answer.headers.get("Location"))`: ask again, at `redirects.url`.
    """

    def __init__(self, url: str, statuses: Collection[int], *, leaves_site: bool = True) -> None:
        """Redirects of other `statuses` are final answers. Without `leaves_site`, it never goes to another origin."""
        self.url = url
        self._first = url
        self._statuses = statuses
        self._leaves_site = leaves_site
        self._n_followed = 0

    def follow(self, status: int | None, location: str | None) -> bool:
        """Goes on to `location`; returns False for a final answer. Raises RedirectRefused."""
        if status not in self._statuses or location is None:
            return False
        target = urljoin(self.url, location)
        if self._n_followed == MAX_REDIRECTS:
            raise RedirectRefused(f"more than {MAX_REDIRECTS} redirects")
        if not is_http_url(target):
            raise RedirectRefused("it redirects to something else than http or https")
        if not self._leaves_site and not is_same_site(self._first, target):
            raise RedirectRefused("it redirects to another host or port, which is not followed")
        self._n_followed += 1
        self.url = target
        return True
