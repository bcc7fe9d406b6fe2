"""Models of a hub in a pool: downloaded before they are loaded, while the others answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import gevent
import gevent.event
import pytest

from corosrv.base.errors import HubError, ModelFailed, Refused, Starting
from corosrv.contracts import settings
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from corosrv.models.pool import ModelPool
from tests.models.requests import asking, failure, status, wait_status
from tests.support.engines import TIMEOUT, answer, job
from tests.support.waiting import wait_until

ALONE = "hf:o/r"
BESIDE = "a=synthetic:?tokens_per_s=0,b=hf:o/r"


class ScriptedDownload:
    """A download that ends when it is told to."""

    def __init__(self, model: ModelSettings) -> None:
        self._model = model
        self._end = gevent.event.AsyncResult()
        self.bytes, self.total = 0, 0
        self.n_runs = 0
        self.is_cancelled = False

    @property
    def words(self) -> str:
        return f"{self.bytes} of {self.total}"

    def run(self) -> ModelSettings:
        self.n_runs += 1
        self._end.get(timeout=TIMEOUT)
        return replace(self._model, model="synthetic:?tokens_per_s=0", model_alias=",".join(self._model.names))

    def cancel(self) -> None:
        self.is_cancelled = True
        self.fail("the download was stopped")

    def succeed(self) -> None:
        self._end.set()

    def fail(self, reason: str) -> None:
        self._end.set_exception(HubError(reason))


Start = Callable[..., tuple[ModelPool, list[ScriptedDownload]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts pools and returns them with the downloads that they begin."""
    pools: list[ModelPool] = []

    def start(model: str) -> tuple[ModelPool, list[ScriptedDownload]]:
        downloads: list[ScriptedDownload] = []

        def make_download(chosen: ModelSettings) -> ScriptedDownload:
            downloads.append(ScriptedDownload(chosen))
            return downloads[-1]

        values = {"model": model, "slots": 4, "ctx": 512, "threads": 1}
        pool = ModelPool(settings.load(values, environ={}), Engine, make_download=make_download)
        pools.append(pool)
        pool.start()
        return pool, downloads

    gevent.get_hub()
    yield start
    for pool in pools:
        pool.close()


def test_the_first_model_is_downloaded_and_then_loaded(start: Start) -> None:
    pool, downloads = start(ALONE)
    wait_until(lambda: bool(downloads))
    downloads[0].bytes, downloads[0].total = 7, 9
    with pytest.raises(Starting, match="the model is being downloaded: 7 of 9"):
        pool.check()
    with pytest.raises(Starting, match="the model is being downloaded: 7 of 9"):
        pool.submit(job())

    downloads[0].succeed()
    wait_until(lambda: pool.state.value == "ready")

    assert answer(pool, job())
    assert [card.id for card in pool.models()] == ["o/r"]
    assert len(downloads) == 1


def test_other_models_answer_during_a_download_and_its_own_requests_wait(start: Start) -> None:
    pool, downloads = start(BESIDE)
    wait_until(lambda: pool.state.value == "ready")
    request = asking(pool, "b")
    wait_status(pool, b="downloading")
    downloads[0].bytes, downloads[0].total = 3, 8

    assert answer(pool, job(model="a"))
    assert pool.models()[1].progress == {"bytes": 3, "total": 8}
    assert not request.ready()
    downloads[0].succeed()

    assert request.get(timeout=TIMEOUT)
    assert status(pool) == {"a": "loaded", "b": "loaded"}
    assert pool.models()[1].progress == {}


def test_a_download_that_fails_fails_its_requests_and_is_tried_again(start: Start, quiet: None) -> None:
    pool, downloads = start(BESIDE)
    request = asking(pool, "b")
    wait_status(pool, b="downloading")
    downloads[0].fail("o/r has no revision 'main'")
    refusal = failure(request)
    assert isinstance(refusal, ModelFailed)
    assert "could not be loaded: o/r has no revision 'main'" in str(refusal)
    wait_status(pool, b="failed")

    pool.load("b")
    wait_until(lambda: len(downloads) == 2)
    downloads[1].succeed()

    wait_status(pool, b="loaded")


def test_a_download_that_nobody_waits_for_can_be_stopped(start: Start) -> None:
    pool, downloads = start(BESIDE)
    pool.load("b")
    wait_status(pool, b="downloading")

    pool.unload("b")

    assert status(pool)["b"] == "unloaded"
    assert downloads[0].is_cancelled
    with pytest.raises(Refused, match="the model 'b' is not loaded"):
        pool.unload("b")


def test_the_end_of_a_pool_ends_its_downloads(start: Start) -> None:
    pool, downloads = start(ALONE)
    wait_until(lambda: bool(downloads))

    pool.close()

    assert downloads[0].is_cancelled
