"""Loads and unloads models for Ollama's clients: `keep_alive`, requests without a prompt, and pulls with progress."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import gevent

from corosrv.base.errors import CorosrvError, ModelFailed, ShuttingDown
from corosrv.base.waits import call_later
from corosrv.contracts.jobs import ModelCard, State
from corosrv.dialects.ollama.answers import PullLine
from corosrv.dialects.ollama.catalog import FOREVER, digest
from corosrv.models.plan import ModelState, Standing

if TYPE_CHECKING:
    from corosrv.models.pool import ModelPool

_LOOK_S = 1.0  # seconds between two looks at models that are to be unloaded
_PULL_S = 0.25  # seconds between two lines of a pull
_COMING = (ModelState.READY, ModelState.LOADING, ModelState.DOWNLOADING)


class KeepAlive:
    """Unloads models that nobody uses for as long as the last request for each says. Belongs to the hub's thread.

    Uses by other protocols count, too. What the operator has set (COROSRV_MODEL_IDLE_S) is the pool's to do, and goes
    before a longer time of a client's.
    """

    def __init__(self, pool: ModelPool, idle_s: float = 0.0, later: Callable[..., None] = call_later) -> None:
        """`idle_s`: the operator's, 0: never. `later`: calls a function after so many seconds."""
        self._pool = pool
        self._idle_s = idle_s or math.inf
        self._later = later
        self._seconds: dict[str, float] = {}  # by the names of models
        self._is_looking = False

    def note(self, name: str, seconds: float | None) -> bool:
        """Notes what a request says; None leaves the model to the operator. Returns whether it is news, at once."""
        if seconds is None:
            return self._seconds.pop(name, None) is not None
        is_news = self._seconds.get(name) != seconds
        self._seconds[name] = seconds
        if not self._is_looking and seconds < math.inf:
            self._is_looking = True
            self._later(_LOOK_S, self._look)
        return is_news

    def unload(self, name: str) -> None:
        """Unloads a model now, or as soon as nobody uses it. Returns at once."""
        self.note(name, 0.0)
        self._look_at(name, 0.0)

    def expires_at(self, standing: Standing) -> float:
        """Returns when a loaded model is unloaded unless it is used again, in seconds since 1970."""
        seconds = min(self._seconds.get(standing.name, math.inf), self._idle_s)
        if seconds == math.inf:
            return FOREVER
        idle_s = time.monotonic() - standing.idle_since if standing.is_idle else 0.0
        return min(int(time.time()) + max(seconds - idle_s, 0.0), FOREVER)

    def _look(self) -> None:
        for name, seconds in list(self._seconds.items()):
            if seconds < math.inf:
                self._look_at(name, seconds)
        self._is_looking = any(seconds < math.inf for seconds in self._seconds.values())
        if self._is_looking:
            self._later(_LOOK_S, self._look)

    def _look_at(self, name: str, seconds: float) -> None:
        standing = self._pool.standing(name)
        if standing.state not in _COMING:
            self._seconds.pop(name, None)
        elif standing.is_idle and time.monotonic() - standing.idle_since >= seconds:
            del self._seconds[name]
            with contextlib.suppress(CorosrvError):  # it has just been asked, or the server ends
                self._pool.unload(name)


def pull_lines(pool: ModelPool, card: ModelCard) -> Iterator[PullLine]:
    """Downloads a model of a hub, which is loaded then, and yields how far it is. Waits.

    A model whose files are here is there at once. Raises ModelFailed, with the reason, and ShuttingDown.
    """
    yield PullLine("pulling manifest")
    if not pool.standing(card.id).is_here:
        pool.load(card.id)
        yield from _download_lines(pool, card)
    yield PullLine("verifying sha256 digest")
    yield PullLine("writing manifest")
    yield PullLine("success")


def _download_lines(pool: ModelPool, card: ModelCard) -> Iterator[PullLine]:
    tag = f"sha256:{digest(card)}"
    while not (standing := pool.standing(card.id)).is_here:
        _check_goes_on(pool, standing)
        progress = next((one.progress for one in pool.models() if one.id == card.id), {})
        if total := progress.get("total"):
            yield PullLine(f"pulling {tag[7:19]}", tag, total, progress.get("bytes", 0))
        gevent.sleep(_PULL_S)


def _check_goes_on(pool: ModelPool, standing: Standing) -> None:
    """Raises the reason for which a download has ended, if it has."""
    if pool.state is State.DRAINING:
        raise ShuttingDown("the server is shutting down")
    if standing.state is ModelState.FAILED:
        pool.card(standing.name)  # raises what went wrong
    if standing.state is ModelState.UNLOADED and standing.wanted_since is None:
        raise ModelFailed(f"the download of '{standing.name}' was stopped; the next one goes on where it was")
