"""The engine's process dies or hangs: answers go on behind their last token, and end as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest

from corosrv.base.errors import EngineGone, ShuttingDown, Unavailable
from corosrv.contracts.jobs import Chunk, EmbedJob, Finish, Job, Sampling, Text, ThoughtBudget, Tokens
from corosrv.models.engine.process import connector, remote
from corosrv.models.engine.process.jobs import RemoteReader
from corosrv.models.engine.process.remote import RemoteEngine
from tests.models.engine.process.conftest import OpenFront, has_ended, pid_of
from tests.support import crashing_engine
from tests.support.engines import TIMEOUT, answer, endless, job, packaged_model, read_all, text_of
from tests.support.gguf import write_llama, write_lora
from tests.support.waiting import wait_until

SPEED = "synthetic:?tokens_per_s=100"

SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "seeded": Sampling(temperature=1.2, seed=7),
    "penalties": Sampling(temperature=1, seed=7, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "dry": Sampling(temperature=1, seed=7, dry_multiplier=0.8),
    "xtc": Sampling(temperature=1, seed=7, xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat": Sampling(temperature=1, seed=7, mirostat=1),
    "mirostat 2": Sampling(temperature=1, seed=7, mirostat=2),
    "adaptive": Sampling(temperature=1, seed=7, adaptive_target=0.3),
    "grammar": Sampling(temperature=1, seed=7, grammar='root ::= ("a" | "b" | " ")+'),
    "tokens told": Sampling(temperature=1, seed=7, n_probs=2),
}


def kill(front: RemoteEngine) -> int:
    pid = pid_of(front)
    os.kill(pid, signal.SIGKILL)
    return pid


def begun(reader: RemoteReader, n_answers: int = 1) -> list[Chunk]:
    """Returns the chunks that have come once each of a job's answers has begun."""
    chunks: list[Chunk] = []
    while len({chunk.index for chunk in chunks if chunk.n_tokens}) < n_answers:
        taken = reader.take(TIMEOUT)
        assert taken, "it has ended"
        chunks += taken
    return chunks


class EndedBefore(Exception):
    """The answer has ended before the engine was killed as often as it should be."""


def whole(
    front: RemoteEngine, asked: Job, n_kills: int = 0, every: int = 7
) -> tuple[str, Finish | None, int, list[int]]:
    """Text, finish, number of tokens and the tokens told of; the engine is killed after so many tokens, and again."""
    text, n_tokens, told, decode_ms = "", 0, list[int](), list[float]()
    finish = None
    with front.submit(asked) as reader:
        while chunks := reader.take(TIMEOUT):
            for chunk in chunks:
                text += chunk.text
                n_tokens += chunk.n_tokens
                told += [token.id for token in chunk.tokens]
                decode_ms.append(chunk.decode_ms)
                finish = chunk.finish or finish
            if n_kills and n_tokens >= every and finish is None:
                n_kills -= 1
                every += 7
                kill(front)
    if n_kills:
        raise EndedBefore
    assert decode_ms == sorted(decode_ms)  # of all engines together
    assert any(decode_ms[:-1])
    return text, finish, n_tokens, told


def disturbed(
    front: RemoteEngine, asked: Job, n_kills: int, every: int = 7
) -> tuple[str, Finish | None, int, list[int]]:
    """What `whole` tells over so many deaths: on a busy machine an answer may run ahead of who kills the engine."""
    for _ in range(9):
        with contextlib.suppress(EndedBefore):
            return whole(front, asked, n_kills, every)
    pytest.fail("each answer has ended before all kills")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_an_answer_is_the_same_over_three_deaths(open_front: OpenFront, sampling: Sampling) -> None:
    front = open_front(model=SPEED)
    asked = job("Once upon a time", max_tokens=40, sampling=sampling)

    undisturbed = whole(front, asked)

    assert disturbed(front, asked, n_kills=3) == undisturbed
    assert front.n_restarts >= 3


@pytest.mark.parametrize(
    "asked",
    [
        job("Once", max_tokens=40, stop=("the sea the",)),
        job("Once", max_tokens=None),
    ],
    ids=["stop string", "full context"],
)
def test_what_ends_an_answer_ends_it_over_a_death(open_front: OpenFront, asked: Job) -> None:
    front = open_front(model=SPEED, ctx=64)

    undisturbed = whole(front, asked)

    assert disturbed(front, asked, n_kills=1, every=5) == undisturbed


WEIGHTS = {f"blk.{layer}.attn_output.weight": (32, 32) for layer in (0, 1)} | {"blk.1.ffn_up.weight": (32, 64)}


@pytest.fixture
def adapted(tmp_path: Path) -> dict[str, Any]:
    """Settings of a tiny model with two adapters, of which jobs get none that do not ask."""
    one, two = (str(write_lora(tmp_path / f"{name}.gguf", WEIGHTS, seed)) for seed, name in enumerate(("one", "two")))
    model = str(write_llama(tmp_path / "tiny.gguf", context=8192))
    return {"model": model, "lora": f"{one}:0,{two}:0", "ctx": 8192}


def scales_of(front: RemoteEngine) -> list[float]:
    return [adapter.scale for adapter in front.adapters()]


def test_scales_of_adapters_that_were_set_outlive_the_engine_at_every_front(
    open_front: OpenFront, adapted: dict[str, Any]
) -> None:
    first, second = open_front(**adapted), open_front(**adapted)
    asked = job("tell me", max_tokens=12, sampling=Sampling(temperature=0))
    plain = text_of(read_all(first.submit(asked)))
    first.set_adapters({0: 0.5, 1: 1.5})
    set_text = text_of(read_all(second.submit(asked)))

    for number in range(2):
        kill(first)
        wait_until(lambda number=number: [one.n_restarts for one in (first, second)] == [number + 1] * 2)
        assert scales_of(first) == scales_of(second) == [0.5, 1.5]
        assert [text_of(read_all(one.submit(asked))) for one in (first, second)] == [set_text] * 2
    third = open_front(**adapted)
    second.set_adapters({})  # the next change goes before all that were before it
    kill(third)
    wait_until(lambda: third.n_restarts == 1)

    assert set_text != plain
    assert scales_of(third) == scales_of(first) == [0.0, 0.0]
    assert text_of(read_all(third.submit(asked))) == plain


def test_an_answer_goes_on_with_the_scales_that_it_began_with(open_front: OpenFront, adapted: dict[str, Any]) -> None:
    front = open_front(**adapted)
    asked = job("tell me", max_tokens=7000, sampling=Sampling(temperature=1, seed=7, ignore_eos=True))
    front.set_adapters({0: 1.0})
    undisturbed = text_of(read_all(front.submit(asked)))

    reader = front.submit(asked)
    chunks = begun(reader)
    front.set_adapters({1: 1.0})
    kill(front)
    chunks += read_all(reader)

    assert front.n_restarts == 1
    assert text_of(chunks) == undisturbed
    assert scales_of(front) == [0.0, 1.0]


def test_several_answers_of_a_job_go_on_each(open_front: OpenFront) -> None:
    front = open_front(model=SPEED)
    asked = job("Once", n=4, max_tokens=30, sampling=Sampling(temperature=1, seed=3))
    undisturbed = read_all(front.submit(asked))

    reader = front.submit(asked)
    chunks = begun(reader, n_answers=4)
    kill(front)
    chunks += read_all(reader)

    for index in range(4):
        assert text_of(chunks, index) == text_of(undisturbed, index)
    assert sum(chunk.finish is not None for chunk in chunks) == 4


def test_jobs_that_wait_or_come_meanwhile_are_answered(open_front: OpenFront) -> None:
    front = open_front(model=SPEED, slots=1)
    readers = [front.submit(job("Once", max_tokens=10)) for _ in range(4)]
    first = begun(readers[0])

    kill(front)
    late = gevent.spawn(answer, front, job("Once", max_tokens=10))
    texts = {text_of(first + read_all(readers[0])), *(text_of(read_all(reader)) for reader in readers[1:])}
    texts.add(late.get(timeout=TIMEOUT))

    assert len(texts) == 1


def test_answers_that_go_on_keep_their_places_from_jobs_that_come_meanwhile(open_front: OpenFront) -> None:
    front, other = (open_front(model=SPEED, slots=1, queue=1) for _ in range(2))
    undisturbed = answer(front, job("Once", max_tokens=20))
    readers = [front.submit(job("Once", max_tokens=20)) for _ in range(2)]
    first = begun(readers[0])

    kill(front)
    wait_until(lambda: front.is_recovering and other.is_recovering)
    late = [gevent.spawn(answer, engine, job("Once", max_tokens=20)) for engine in (front, other) for _ in range(2)]
    texts = [text_of(first + read_all(readers[0])), text_of(read_all(readers[1]))]

    assert texts == [undisturbed] * 2
    gevent.joinall(late, timeout=TIMEOUT)
    assert all(greenlet.value == undisturbed or greenlet.exception.code == "queue_full" for greenlet in late)


def test_all_fronts_go_on_in_one_new_engine(open_front: OpenFront) -> None:
    fronts = [open_front(model=SPEED) for _ in range(3)]
    undisturbed = answer(fronts[0], job("Once", max_tokens=30))
    readers = [front.submit(job("Once", max_tokens=30)) for front in fronts]
    firsts = [begun(reader) for reader in readers]

    old = kill(fronts[0])
    texts = [text_of(first + read_all(reader)) for first, reader in zip(firsts, readers, strict=True)]

    assert texts == [undisturbed] * 3
    assert {pid_of(front) for front in fronts} != {old}
    assert len({pid_of(front) for front in fronts}) == 1


def test_a_cancel_while_there_is_no_engine_counts(open_front: OpenFront) -> None:
    front = open_front(model=SPEED)
    reader = front.submit(endless())
    kill(front)
    wait_until(lambda: front.is_recovering)

    reader.cancel()

    assert read_all(reader)[-1].finish is Finish.CANCELLED


def test_thoughts_that_end_while_there_is_no_engine_have_ended(open_front: OpenFront) -> None:
    front = open_front(model=SPEED)
    thinking = Sampling(temperature=0, thoughts=ThoughtBudget(10_000, "</t>"))
    reader = front.submit(job("Once", max_tokens=60, sampling=thinking))
    first = begun(reader)
    kill(front)
    wait_until(lambda: front.is_recovering)

    reader.end_thoughts()

    assert "</t>" in text_of(first + read_all(reader))


def test_an_engine_that_hangs_is_ended_and_its_answers_go_on(
    open_front: OpenFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "HUNG", 2.0)
    front = open_front(model=SPEED)
    asked = job("Once", max_tokens=40)
    undisturbed = answer(front, asked)
    reader = front.submit(asked)
    first = begun(reader)
    pid = pid_of(front)

    os.kill(pid, signal.SIGSTOP)

    assert text_of(first + read_all(reader)) == undisturbed
    assert has_ended(pid)


def test_questions_are_answered_with_an_error_when_the_engine_is_lost(open_front: OpenFront) -> None:
    front = open_front(model=SPEED)
    pid = pid_of(front)
    os.kill(pid, signal.SIGSTOP)
    asking = gevent.spawn(front.slots)
    gevent.idle()  # it has asked

    os.kill(pid, signal.SIGKILL)

    with pytest.raises(Unavailable, match="engine was lost"):
        asking.get(timeout=TIMEOUT)
    wait_until(lambda: not front.is_recovering)
    assert len(front.slots()) == 4


def test_questions_are_answered_with_an_error_when_their_front_closes_the_engine(open_front: OpenFront) -> None:
    front = open_front(model=SPEED)
    os.kill(pid_of(front), signal.SIGSTOP)
    asking = gevent.spawn(front.slots)
    gevent.idle()  # it has asked

    front.close()

    with pytest.raises(Unavailable, match="engine is closed"):
        asking.get(timeout=TIMEOUT)


@pytest.mark.parametrize("end", [RemoteEngine.drain, RemoteEngine.close])
def test_a_job_that_no_engine_takes_is_refused_when_its_front_stops(
    open_front: OpenFront, end: Callable[..., None]
) -> None:
    front = open_front(model=SPEED)
    os.kill(pid_of(front), signal.SIGSTOP)
    submitting = gevent.spawn(front.submit, job())
    gevent.idle()  # it has asked

    end(front)

    with pytest.raises(ShuttingDown, match="has not taken the request"):
        submitting.get(timeout=TIMEOUT)


# A request of which engines die


def test_a_poisonous_request_costs_three_engines_and_no_other_answer(
    open_front: OpenFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "MODULE", crashing_engine.__name__)
    fronts = [open_front(model=SPEED, slots=32) for _ in range(2)]
    undisturbed = answer(fronts[0], job("Once", max_tokens=60))
    neighbours = [fronts[n % 2].submit(job("Once", max_tokens=60)) for n in range(8)]
    poison = job(max_tokens=60)
    poison = Job((Tokens((*b"Once", crashing_engine.POISON)),), max_tokens=60, sampling=poison.sampling)

    poisoned = fronts[0].submit(poison)
    last = read_all(poisoned)[-1]

    assert (last.finish, last.code) == (Finish.ERROR, "engine_gone")
    assert [text_of(read_all(reader)) for reader in neighbours] == [undisturbed] * 8
    assert fronts[0].n_restarts <= 3
    all_fronts = (*fronts, open_front(model=SPEED, slots=32))
    # The front whose request it was tells the next engine, and that one the others.
    wait_until(lambda: all(front._ledger.suspects.bans(time.monotonic()) for front in all_fronts))
    for front in all_fronts:
        with pytest.raises(EngineGone, match="ended the engine three times"):
            front.submit(poison)
    assert answer(fronts[1], job("Once", max_tokens=60)) == undisturbed


# The real model


REAL = {
    **SAMPLINGS,
    "grammar": Sampling(temperature=1, seed=7, grammar='root ::= ("The " [a-z]+ " is " [a-z]+ ". ")+'),
    "thoughts": Sampling(temperature=1, seed=7, thoughts=ThoughtBudget(tokens=10, closing="END", ending=tuple(b"END"))),
}


@pytest.mark.model
@pytest.mark.parametrize("sampling", REAL.values(), ids=REAL)
def test_an_answer_of_the_real_model_is_the_same_over_two_deaths(open_front: OpenFront, sampling: Sampling) -> None:
    front = open_front(model=packaged_model(), deterministic=True, slots=2, cache_bytes=0)
    asked = job("The capital of France is", max_tokens=40, sampling=replace(sampling, ignore_eos=True))

    undisturbed = whole(front, asked)

    assert disturbed(front, asked, n_kills=2) == undisturbed


@pytest.mark.model
def test_vectors_are_computed_anew(open_front: OpenFront) -> None:
    front = open_front(model=packaged_model(), slots=2)
    asked = EmbedJob(tuple(Text(f"number {n} " * 20) for n in range(12)))
    undisturbed = read_all(front.submit(asked))

    reader = front.submit(asked)
    kill(front)
    vectors = {chunk.index: chunk.vector for chunk in read_all(reader)}

    assert vectors.keys() == {chunk.index for chunk in undisturbed}
    assert all(len(vectors[chunk.index]) == len(chunk.vector) for chunk in undisturbed)
