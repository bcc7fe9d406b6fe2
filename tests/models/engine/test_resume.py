"""Tasks that go on where an earlier engine stopped: the rest is, bit for bit, what that one would have said."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import pytest

from corosrv.base import errors, waits
from corosrv.contracts.jobs import Chunk, Finish, Sampling, ThoughtBudget
from corosrv.models.engine.binding import NativeEngine, Options, Synthetic, Task, TaskKind
from tests.support.engines import TIMEOUT, packaged_model

STATE_BYTES = 16
OPTIONS = Options(
    model="",
    synthetic=Synthetic(tokens_per_s=0),
    context=512,
    slots=8,
    queue=32,
    tasks_of_owner=0,
    threads=1,
    step_ms=60,
    reader_bytes=65_536,
    cache_bytes=1 << 26,
)
CUTS = (1, 2, 5, 11, 17, 23, 30)  # chunks that came before the engine was gone


class Journal(NamedTuple):
    """What a front has of a task."""

    ids: tuple[int, ...]
    text: str
    state: bytes

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Journal:
        ids = b"".join(chunk.ids for chunk in chunks)
        states = [chunk.state for chunk in chunks if chunk.state]
        return cls(
            struct.unpack(f"={len(ids) // 4}i", ids),
            "".join(chunk.text for chunk in chunks),
            states[-1] if states else b"",
        )

    def resumed(self, task: Task) -> Task:
        sent = len(self.text.encode())
        return msgspec.structs.replace(task, generated=self.ids, sent_bytes=sent, state=self.state)


@pytest.fixture(scope="module")
def native() -> Iterator[NativeEngine]:
    yield from opened(OPTIONS)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[NativeEngine]:
    yield from opened(real(deterministic=True))


def real(**chosen: object) -> Options:
    return msgspec.structs.replace(OPTIONS, model=packaged_model(), synthetic=None, **chosen)


def opened(options: Options) -> Iterator[NativeEngine]:
    native = NativeEngine(options)
    waits.wait_readable(native.fd, TIMEOUT)
    yield native
    native.close()


def run(native: NativeEngine, *tasks: Task) -> list[list[Chunk]]:
    """The chunks of each task, to its end."""
    reader = native.submit(tasks)
    chunks: list[list[Chunk]] = [[] for _ in tasks]
    while not all(of and of[-1].finish for of in chunks):
        waits.wait_readable(reader.fd, TIMEOUT)
        for chunk in reader.take():
            chunks[chunk.index].append(chunk)
    reader.close()
    return chunks


def task_of(native: NativeEngine, prompt: str, sampling: Sampling, **chosen: object) -> Task:
    tokens = native.tokenize(prompt.encode(), True, False)
    return Task(**{"tokens": tokens, "max_tokens": 40, "sampling": sampling, "seed": 7, "tells_state": True, **chosen})


def check_every_cut(native: NativeEngine, task: Task) -> None:
    """Lets engines die behind some of the task's chunks, and compares what comes then."""
    (whole,) = run(native, task)
    expected = Journal.of(whole)
    assert all(len(chunk.ids) == 4 * chunk.n_tokens for chunk in whole)
    assert all(len(chunk.state) == (STATE_BYTES if chunk.ids else 0) for chunk in whole)
    journals = [Journal.of(whole[:n]) for n in CUTS if n < len(whole)]
    assert len(journals) > 1

    rests = run(native, *(journal.resumed(task) for journal in journals))

    for before, rest in zip(journals, rests, strict=True):
        after = Journal.of(rest)
        assert before.ids + after.ids == expected.ids
        assert before.text + after.text == expected.text
        last, wanted = rest[-1], whole[-1]
        assert (last.finish, last.stopping_word, last.code) == (wanted.finish, wanted.stopping_word, wanted.code)
        assert last.prompt_tokens == wanted.prompt_tokens


GREEDY = Sampling(temperature=0)
HOT = Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0)
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": Sampling(),
    "hot": HOT,
    "mirostat": replace(HOT, mirostat=1, mirostat_tau=4.0),
    "mirostat 2": replace(HOT, mirostat=2, mirostat_tau=4.0),
    "adaptive-p": replace(HOT, adaptive_target=0.4),
    "xtc": replace(HOT, xtc_probability=0.6, xtc_threshold=0.05),
    "dry": replace(HOT, temperature=0.3, dry_multiplier=0.8),
    "penalties": replace(HOT, temperature=0.3, repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    "grammar": replace(HOT, grammar='root ::= ([a-z]{1,6} " ")+'),
    "grammar with a trigger": replace(HOT, grammar='root ::= "the" [a-z ]+', grammar_triggers=("the",)),
    "thoughts": replace(HOT, thoughts=ThoughtBudget(6, "", ".", (30, 31, 32))),
}


@pytest.mark.model
@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_sampler_goes_on_as_if_nothing_had_happened(smollm2, name):
    check_every_cut(smollm2, task_of(smollm2, "Once upon a time there was a", SAMPLINGS[name]))


@pytest.mark.model
def test_a_stop_string_is_found_across_the_cut(smollm2):
    task = task_of(smollm2, "Count: one, two, three,", GREEDY)
    text = "".join(chunk.text for chunk in run(smollm2, task)[0])

    check_every_cut(smollm2, msgspec.structs.replace(task, stops=(text[-9:].encode(), b", zzz")))


@pytest.mark.model
def test_characters_of_several_tokens_are_whole_across_the_cut(smollm2):
    emoji = replace(HOT, grammar="root ::= [\U0001f300-\U0001f5ff]+")

    check_every_cut(smollm2, task_of(smollm2, "Emoji: \U0001f30a\U0001f30d", emoji, max_tokens=60))


@pytest.mark.model
def test_without_deterministic_mode_the_best_token_stays_the_best():
    for native in opened(real()):
        check_every_cut(native, task_of(native, "Once upon a time there was a", GREEDY))


def test_a_resumed_task_counts_as_a_whole(native):
    task = task_of(native, "Hello", Sampling(), max_tokens=20)
    before = Journal.of(run(native, msgspec.structs.replace(task, max_tokens=15))[0])

    (rest,) = run(native, before.resumed(task))

    assert sum(chunk.n_tokens for chunk in rest) == 5
    assert (rest[-1].finish, rest[-1].prompt_tokens) == (Finish.LENGTH, 5)
    assert Journal.of(run(native, task)[0]).ids == before.ids + Journal.of(rest).ids


def test_chunks_have_no_ids_unless_they_are_asked_for(native):
    (chunks,) = run(native, task_of(native, "Hello", Sampling(), tells_state=False))

    assert not any(chunk.ids or chunk.state for chunk in chunks)


GENERATED = {"generated": tuple(b"Hi"), "sent_bytes": 2, "state": bytes(STATE_BYTES)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"generated": (1, 273)}, "unknown token"),
        ({"generated": (1, 272)}, "ends an answer"),
        ({"state": b"123"}, "16 bytes here, not 3"),
        ({"generated": (), "sent_bytes": 0}, "0 bytes here, not 16"),
        ({"sent_bytes": 3}, "2 bytes of text are certain"),
        ({"stops": (b"i",)}, "stop string"),
        ({"sampling": Sampling(grammar='root ::= "Ho"')}, "grammar"),
        ({"tokens": (1,) * 511}, "what was generated has 513 tokens"),
        ({"context_shift": True, "tokens": (1,) * 510}, "what was generated has 512 tokens"),
        ({"kind": TaskKind.EMBED}, "vectors"),
    ],
)
def test_what_an_earlier_engine_cannot_have_done_is_refused_in_words(native, changes, words):
    task = msgspec.structs.replace(task_of(native, "Hello", Sampling()), **{**GENERATED, **changes})

    with pytest.raises(errors.CorosrvError, match=words):
        native.submit([task])


def test_a_branch_of_another_answer_draws_with_its_own_seed(native: NativeEngine) -> None:
    task = task_of(native, "Hello", Sampling(), max_tokens=12)
    (whole,) = run(native, task)
    kept = Journal.of(whole).ids[:4]
    branch = msgspec.structs.replace(task, generated=kept, seed=8)

    (first,), (again,) = run(native, branch), run(native, branch)
    (other,) = run(native, msgspec.structs.replace(branch, seed=9))

    assert Journal.of(first) == Journal.of(again) != Journal.of(other)
    assert len(Journal.of(first).ids) == 8  # what it keeps counts in max_tokens
