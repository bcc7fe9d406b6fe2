"""Models loaded, unloaded, listed and pulled, as Ollama's clients ask for it, over a pool of made-up models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gevent
import gevent.event
import pytest

from corosrv.base.errors import ModelFailed, NotFound, ShuttingDown
from corosrv.contracts import settings
from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.ollama import catalog
from corosrv.dialects.ollama.catalog import OllamaCatalog
from corosrv.dialects.ollama.loading import KeepAlive, pull_lines
from corosrv.models.engine import Engine
from corosrv.models.pool import ModelPool
from tests.support.waiting import wait_until

TWO = "a=synthetic:?tokens_per_s=0&alias=first,r:Q4=synthetic:?tokens_per_s=0"


@pytest.fixture
def pool() -> Iterator[ModelPool]:
    yield from pool_of(TWO)


def pool_of(model: str, **chosen: Any) -> Iterator[ModelPool]:
    gevent.get_hub()
    values = {"model": model, "slots": 2, "ctx": 512, "threads": 1, **chosen}
    pool = ModelPool(settings.load(values, environ={}), Engine)
    pool.start()
    wait_until(lambda: pool.state.value == "ready")
    yield pool
    pool.close()


class HandClock:
    """Calls what was to be called later when it is told to."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], object]]] = []

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        self.due.append((seconds, function))

    def tick(self) -> None:
        due, self.due = self.due, []
        for _, function in due:
            function()


def status(pool: ModelPool, name: str) -> str:
    return next(card.status for card in pool.models() if card.id == name)


# Names


@pytest.mark.parametrize("name", ["a", "a:latest", "first", "first:latest"])
def test_a_model_is_found_with_and_without_a_tag(pool: ModelPool, name: str):
    assert OllamaCatalog(pool).find(name).id == "a"


@pytest.mark.parametrize("name", ["r:Q4", "hf.co/o/r:Q4", "huggingface.co/o/r:Q4", "hf:o/r:Q4"])
def test_a_model_of_a_hub_is_found_by_ollamas_name(pool: ModelPool, name: str):
    assert OllamaCatalog(pool).find(name).id == "r:Q4"


@pytest.mark.parametrize("name", ["b", "a:7b", "latest", "a:latest:latest", "A", "o/r:Q4", "x" * 1024])
def test_a_model_that_is_not_there_is_said_in_ollamas_words(pool: ModelPool, name: str):
    with pytest.raises(NotFound) as raised:
        OllamaCatalog(pool).find(name)

    assert str(raised.value) == f"model '{name[:120]}' not found"
    assert raised.value.status == 404


# Lists


def test_all_models_are_listed_and_of_the_loaded_ones_when_they_go(pool: ModelPool):
    found, keep_alive = OllamaCatalog(pool), KeepAlive(pool)
    keep_alive.note("a", 300.0)

    assert [model.name for model in found.tags().models] == ["a:latest", "r:Q4"]
    (running,) = found.running(keep_alive.expires_at).models
    assert running.name == "a:latest"
    assert running.context_length == 512
    assert running.size == 2 * 512 * 4
    assert catalog.timestamp(time.time() + 290) < running.expires_at < catalog.timestamp(time.time() + 310)


def test_a_model_that_stays_goes_at_no_near_time(pool: ModelPool):
    assert KeepAlive(pool).expires_at(pool.standing("a")) == catalog.FOREVER
    keep_alive = KeepAlive(pool, idle_s=60.0)
    keep_alive.note("a", math.inf)
    assert time.time() < keep_alive.expires_at(pool.standing("a")) < time.time() + 61


def test_a_model_is_shown_without_being_loaded(pool: ModelPool):
    found = OllamaCatalog(pool)

    shown = found.show(found.find("a"))
    assert shown.capabilities == ["completion", "tools"]
    assert "message" in shown.template
    assert found.show(found.find("r:Q4")).template == ""
    assert status(pool, "r:Q4") == "unloaded"


def test_digests_tell_models_apart_and_stay(pool: ModelPool):
    first, second = (model.digest for model in OllamaCatalog(pool).tags().models)

    assert first != second
    assert len(first) == len(second) == 64
    pool.unload("a")
    wait_until(lambda: status(pool, "a") == "unloaded")
    assert OllamaCatalog(pool).tags().models[0].digest == first


@pytest.mark.parametrize(
    ("abilities", "words"),
    [
        (
            {"completion", "chat", "tools", "images", "infill", "embeddings"},
            ["completion", "vision", "tools", "insert"],
        ),
        ({"embeddings"}, ["embedding"]),
        (set(), []),
    ],
)
def test_abilities_have_ollamas_words(abilities: set[str], words: list[str]):
    assert catalog.capabilities(ModelCard("m", 1, capabilities=frozenset(abilities))) == words


@pytest.mark.parametrize(
    ("number", "words"), [(134_515_008, "134.52M"), (7_615_616_512, "7.6B"), (999, "999"), (1_500, "1.50K")]
)
def test_parameters_are_written_as_ollama_does(number: int, words: str):
    assert catalog.in_words(number) == words


# How long they stay


def test_a_model_that_nobody_uses_goes_when_its_time_is_over(pool: ModelPool):
    clock = HandClock()
    keep_alive = KeepAlive(pool, later=clock.later)
    keep_alive.note("a", 3600.0)
    clock.tick()
    assert status(pool, "a") == "loaded"

    keep_alive.note("a", 0.0)  # that time is over
    clock.tick()

    wait_until(lambda: status(pool, "a") == "unloaded")
    assert clock.due == []


def test_a_model_in_use_stays_until_it_is_not(pool: ModelPool):
    clock = HandClock()
    keep_alive = KeepAlive(pool, later=clock.later)
    vocabulary = pool.vocabulary("a")

    keep_alive.unload("a")
    clock.tick()
    assert status(pool, "a") == "loaded"
    del vocabulary
    clock.tick()

    wait_until(lambda: status(pool, "a") == "unloaded")


def test_the_last_request_says_how_long_a_model_stays(pool: ModelPool):
    clock = HandClock()
    keep_alive = KeepAlive(pool, later=clock.later)
    for later in (None, math.inf):
        keep_alive.note("a", 0.0)
        keep_alive.note("a", later)
        clock.tick()
        assert status(pool, "a") == "loaded"


def test_one_look_at_a_time_is_due_however_many_ask(pool: ModelPool):
    clock = HandClock()
    keep_alive = KeepAlive(pool, later=clock.later)

    for seconds in range(1000, 0, -1):
        keep_alive.note("a", float(seconds))
        keep_alive.note("r:Q4", float(seconds))

    assert len(clock.due) == 1


# Pulls


def test_a_model_that_is_here_is_pulled_at_once(pool: ModelPool):
    words = [line.status for line in pull_lines(pool, pool.models()[1])]

    assert words == ["pulling manifest", "verifying sha256 digest", "writing manifest", "success"]
    assert status(pool, "r:Q4") == "unloaded"


class StandingDownload:
    """A download that is half done until it is let go or cancelled."""

    bytes, total, words = 5, 10, "5 of 10"

    def __init__(self, model: settings.ModelSettings) -> None:
        self._model = model
        self.ended = gevent.event.Event()
        self.fails = False

    def run(self) -> settings.ModelSettings:
        assert self.ended.wait(10)
        if self.fails:
            raise ModelFailed("the hub has it no more")
        return replace(self._model, model="synthetic:?tokens_per_s=0")

    def cancel(self) -> None:
        self.fails = True
        self.ended.set()


@pytest.fixture
def hub() -> Iterator[tuple[ModelPool, list[StandingDownload]]]:
    gevent.get_hub()
    downloads: list[StandingDownload] = []

    def download(model: settings.ModelSettings) -> StandingDownload:
        downloads.append(StandingDownload(model))
        return downloads[-1]

    values = {"model": "a=synthetic:,b=hf:o/r:Q4", "slots": 2, "ctx": 512, "threads": 1}
    pool = ModelPool(settings.load(values, environ={}), Engine, make_download=download)
    pool.start()
    wait_until(lambda: pool.state.value == "ready")
    yield pool, downloads
    for one in downloads:
        one.cancel()
    pool.close()


def begin(lines: Iterator[Any]) -> None:
    """Begins a download, and says how far it is."""
    next(lines)
    next(lines)


def test_a_download_tells_how_far_it_is(hub):
    pool, downloads = hub
    lines = pull_lines(pool, pool.models()[1])
    next(lines)

    line = next(lines)
    assert (line.completed, line.total) == (5, 10)
    assert line.status == f"pulling {line.digest.removeprefix('sha256:')[:12]}"
    downloads[0].ended.set()

    assert [line.status for line in lines][-1] == "success"


def test_a_download_that_fails_says_why(hub):
    pool, downloads = hub
    lines = pull_lines(pool, pool.models()[1])
    begin(lines)
    downloads[0].cancel()

    with pytest.raises(ModelFailed, match="the hub has it no more"):
        list(lines)


def test_a_download_that_somebody_stops_ends_the_pull(hub):
    pool, _ = hub
    lines = pull_lines(pool, pool.models()[1])
    begin(lines)
    pool.unload("b")

    with pytest.raises(ModelFailed, match="was stopped"):
        list(lines)


def test_the_end_of_the_server_ends_a_pull(hub):
    pool, _ = hub
    lines = pull_lines(pool, pool.models()[1])
    begin(lines)
    pool.stop_accepting()

    with pytest.raises(ShuttingDown):
        list(lines)
