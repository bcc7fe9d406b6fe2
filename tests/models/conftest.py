"""Pools of made-up models, and engines that wait to be let go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import pytest

from corosrv.contracts import settings
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from corosrv.models.pool import ModelPool
from tests.support.engines import TIMEOUT
from tests.support.waiting import wait_until

TWO = "a=synthetic:?tokens_per_s=0&alias=first,b=synthetic:?tokens_per_s=0"
THREE = f"{TWO},c=synthetic:?tokens_per_s=0"
MODEL_BYTES = 4 * 512 * 4  # what each of them takes: slots, context, bytes of a token id


class Workshop:
    """Makes engines and remembers them; their loading and closing can be held up."""

    def __init__(self) -> None:
        self.made: list[Engine] = []
        self.may_open = gevent.event.Event()
        self.may_open.set()
        self.may_close = threading.Event()  # closing happens in a thread
        self.may_close.set()

    def __call__(self, settings: ModelSettings) -> Engine:
        workshop = self

        class Held(Engine):
            def open(self) -> None:
                assert workshop.may_open.wait(TIMEOUT)
                super().open()

            def close(self) -> None:
                assert workshop.may_close.wait(TIMEOUT)
                super().close()

        self.made.append(Held(settings))
        return self.made[-1]

    def names(self) -> list[str]:
        return [engine.settings.names[0] for engine in self.made]


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are to fail do so in silence."""
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *arguments: None)


@pytest.fixture
def open_pool(workshop: Workshop) -> Iterator[Callable[..., ModelPool]]:
    """Starts pools, their first model loaded unless told otherwise, and closes them at the end."""
    gevent.get_hub()
    pools: list[ModelPool] = []

    def start(model: str = TWO, is_ready: bool = True, watch: Any = None, **chosen: Any) -> ModelPool:
        values = {"model": model, "slots": 4, "ctx": 512, "threads": 1, **chosen}
        pool = ModelPool(settings.load(values, environ={}), workshop, **({"watch": watch} if watch else {}))
        pools.append(pool)
        pool.start()
        if is_ready:
            wait_until(lambda: pool.state.value == "ready")
        return pool

    yield start
    workshop.may_open.set()
    workshop.may_close.set()
    for pool in pools:
        pool.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], str]:
    """Writes the content of a model's file, and returns its path."""

    def write(content: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return str(path)

    return write
