"""What a front notes of its jobs, and how it finds the one of which engines die."""

from __future__ import annotations

import struct

import pytest

from corosrv.contracts.jobs import Chunk, Finish, Sampling, TokenInfo
from corosrv.models.engine.binding import Task
from corosrv.models.engine.process.jobs import BANNED, SECOND_DEATH, DeathSuspects, RemoteJob, RemoteReader, tells_state


def ids(*tokens: int) -> bytes:
    return struct.pack(f"={len(tokens)}i", *tokens)


def reader() -> RemoteReader:
    return RemoteReader(lambda: None, lambda: None, lambda n_bytes: None, lambda: None, lambda: None)


def job_of(reader: RemoteReader, number: int = 0, n_tasks: int = 1, **task: object) -> RemoteJob:
    tasks = [tells_state(Task((1, 2, number), **task)) for _ in range(n_tasks)]  # type: ignore[arg-type]
    return RemoteJob(number, tasks, "", False, reader)


def test_a_job_goes_on_behind_what_was_said() -> None:
    ours = reader()
    job = job_of(ours, n_tasks=2)
    job.add([Chunk(0, "é", 1, ids=ids(7), state=b"a"), Chunk(1, "x", 1, ids=ids(8), state=b"b")])
    job.add([Chunk(0, "y", 2, ids=ids(9, 10), state=b"c"), Chunk(1, "", 0, Finish.STOP)])

    (task,) = job.unfinished_tasks(context=100)

    assert (list(task.generated), task.state, task.sent_bytes) == ([7, 9, 10], b"c", 3)
    job.add([Chunk(0, "z", 1, ids=ids(11), state=b"d")])  # the engine's only task is the job's first
    (task,) = job.unfinished_tasks(context=100)
    assert list(task.generated) == [7, 9, 10, 11]
    assert [(c.index, c.text) for c in ours.take_nowait()] == [(0, "é"), (1, "x"), (0, "y"), (1, ""), (0, "z")]


def test_a_branch_goes_on_behind_what_it_keeps_of_another_answer() -> None:
    ours = reader()
    job = job_of(ours, generated=(5, 6), sent_bytes=1)
    (task,) = job.unfinished_tasks(context=100)
    assert (list(task.generated), task.state, task.sent_bytes) == ([5, 6], b"", 1)

    job.add([Chunk(0, "é", 1, ids=ids(7), state=b"a")])

    (task,) = job.unfinished_tasks(context=100)
    assert (list(task.generated), task.state, task.sent_bytes) == ([5, 6, 7], b"a", 3)


def test_tasks_are_told_apart_when_only_some_go_on() -> None:
    ours = reader()
    job = job_of(ours, n_tasks=3)
    job.add([Chunk(0, "", 0, Finish.STOP)])
    assert len(job.unfinished_tasks(context=100)) == 2

    job.add([Chunk(0, "second", 1), Chunk(1, "third", 1, Finish.STOP), Chunk(0, "", 0, Finish.LENGTH)])

    assert [(c.index, c.text) for c in ours.take_nowait()][1:] == [(1, "second"), (2, "third"), (1, "")]
    assert job.is_over
    assert ours.is_finished


def test_a_shifted_answer_ends() -> None:
    ours = reader()
    job = job_of(ours, context_shift=True)
    job.add([Chunk(0, "x", 8, ids=ids(*range(8)))])

    assert job.unfinished_tasks(context=11) == []
    (*_, last) = ours.take_nowait()
    assert (last.finish, last.code) == (Finish.ERROR, "engine_gone")


def test_a_job_that_nobody_reads_is_noted_all_the_same() -> None:
    ours = reader()
    job = job_of(ours)
    del ours

    job.add([Chunk(0, "x", 1, ids=ids(7))])

    assert list(job.unfinished_tasks(100)[0].generated) == [7]


def test_the_message_of_an_error_is_no_text_that_was_sent() -> None:
    job = job_of(reader(), n_tasks=2)
    job.add([Chunk(0, "gone", 0, Finish.ERROR), Chunk(1, "x", 1, ids=ids(7))])

    assert [task.sent_bytes for task in job.unfinished_tasks(100)] == [1]


def test_figures_are_those_of_all_engines_together() -> None:
    ours = reader()
    job = job_of(ours)
    figures = {"prompt_ms": 3.0, "decode_ms": 10.0, "compute_ms": 5.0, "drafted_tokens": 4, "accepted_tokens": 1}

    for n_cached in (2, 0, 0):
        job.add([Chunk(0, "x", 1, ids=ids(7), cached_tokens=n_cached, **figures)])
        job.unfinished_tasks(context=100)
    job.add([Chunk(0, "", 0, Finish.STOP, cached_tokens=0, **figures)])

    last = ours.take_nowait()[-1]
    assert {name: getattr(last, name) for name in figures} == {name: 4 * figure for name, figure in figures.items()}
    assert last.cached_tokens == 2


def test_tokens_of_a_prompt_are_told_of_once() -> None:
    ours = reader()
    job = job_of(ours, scores_prompt=True)
    first, second, third = (TokenInfo(token, str(token).encode(), -1.0) for token in range(3))
    job.add([Chunk(0, "", 0, prompt_info=(first,)), Chunk(0, "", 0, prompt_info=(second,))])

    for _ in range(2):
        job.unfinished_tasks(context=100)
        job.add([Chunk(0, "", 0, prompt_info=(first,))])
    job.add([Chunk(0, "", 0, prompt_info=(second, third))])

    assert [info for chunk in ours.take_nowait() for info in chunk.prompt_info] == [first, second, third]


def make(*numbers: int) -> list[RemoteJob]:
    kept = [reader() for _ in numbers]
    jobs = [job_of(one, number) for one, number in zip(kept, numbers, strict=True)]
    for job, one in zip(jobs, kept, strict=True):
        job.kept = one  # type: ignore[attr-defined]
    return jobs


def test_one_death_makes_nobody_a_suspect() -> None:
    suspects, jobs = DeathSuspects(), make(1, 2)

    assert suspects.note_death(jobs, None, 0.0) is None
    assert not any(map(suspects.is_suspect, jobs))


def test_what_ran_at_two_deaths_is_suspected_and_found_at_the_third() -> None:
    suspects = DeathSuspects()
    bad, other, later = make(1, 2, 3)
    suspects.note_death([bad, other], None, 0.0)
    suspects.note_death([bad, other, later], None, 1.0)
    assert [suspects.is_suspect(job) for job in (bad, other, later)] == [True, True, False]

    found = suspects.note_death([bad, other, later], bad, 2.0)

    assert found is bad
    assert suspects.is_suspect(other)
    assert suspects.is_banned(bad, 3.0)
    assert not suspects.is_banned(other, 3.0)
    assert not suspects.is_banned(bad, 2.0 + BANNED)


def test_deaths_far_apart_are_chance() -> None:
    suspects, jobs = DeathSuspects(), make(1)
    suspects.note_death(jobs, None, 0.0)
    suspects.note_death(jobs, None, SECOND_DEATH)

    assert not suspects.is_suspect(jobs[0])


@pytest.mark.parametrize(
    "like", [Task((1, 2, 1)), Task((1, 2, 1), max_tokens=5), Task((1, 2, 1), sampling=Sampling(), seed=3)]
)
def test_a_request_like_one_that_was_found_is_banned(like: Task) -> None:
    suspects = DeathSuspects()
    (bad,) = make(1)
    suspects.note_death([bad], bad, 0.0)

    assert suspects.is_banned(RemoteJob(9, [like], "", False, reader()), 1.0)
    assert not suspects.is_banned(RemoteJob(9, [Task((1, 2))], "", False, reader()), 1.0)
