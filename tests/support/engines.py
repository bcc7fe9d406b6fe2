"""Engines for tests, and what they are asked."""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs import Job, Sampling, Text
from corosrv.contracts.settings import ModelSettings, model_list
from corosrv.models.engine import Chunk, Engine, Reader

FAST = "synthetic:?tokens_per_s=0"
SLOW = "synthetic:?tokens_per_s=20"
GREEDY = Sampling(temperature=0)
TIMEOUT = 60.0  # seconds until a wait in a test is a failure


def packaged_model() -> str:
    """Path of SmolLM2; skips the test where it is not installed."""
    try:
        return model_list.packaged_model()
    except SettingsError as error:
        pytest.skip(str(error))


@contextmanager
def opened(**chosen: Any) -> Iterator[Engine]:
    """An open engine, closed at the end; synthetic unless `model` says otherwise.

    One thread computes: two wait for each other where other tests compute too.
    """
    engine = Engine(ModelSettings(**{"model": FAST, "slots": 4, "ctx": 512, "threads": 1, **chosen}))
    try:
        engine.open()
        yield engine
    finally:
        engine.close()


def job(text: str = "Hello", **chosen: Any) -> Job:
    """A job with one prompt, greedy, of eight tokens unless told otherwise."""
    return dataclasses.replace(Job((Text(text),), max_tokens=8, sampling=GREEDY), **chosen)


def endless(text: str = "Hello", **chosen: Any) -> Job:
    """A job that goes on until the context is full."""
    return job(text, max_tokens=None, **chosen)


def read_all(reader: Reader) -> list[Chunk]:
    """Every chunk to the end, each wait bounded."""
    chunks: list[Chunk] = []
    with reader:
        while taken := reader.take(TIMEOUT):
            chunks += taken
    return chunks


def text_of(chunks: Iterable[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


def answer(engine: Engine, job: Job) -> str:
    """The text of a job's first task."""
    return text_of(read_all(engine.submit(job)))


def is_idle(engine: Engine) -> bool:
    """No task runs or waits."""
    stats = engine.stats()
    return stats is None or not (stats.running or stats.waiting)
