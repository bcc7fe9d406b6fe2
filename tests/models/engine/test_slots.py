"""An engine's slots show their tasks, and jobs get the one that they want."""

import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import EmbedJob, Sampling, Text
from tests.support.engines import SLOW, job, opened, read_all
from tests.support.waiting import wait_until


def test_a_slot_shows_its_task_while_it_runs_and_afterwards():
    asked = job("Hello", max_tokens=4, slot=2, sampling=Sampling(temperature=0, top_k=7))

    with opened(model=SLOW, slots=3) as engine:
        assert [(state.id, state.is_busy, state.task) for state in engine.slots()] == [(n, False, -1) for n in range(3)]
        with engine.submit(asked) as reader:
            wait_until(lambda: engine.slots()[2].generated_tokens)
            busy = engine.slots()[2]
            chunks = read_all(reader)
        wait_until(lambda: not engine.slots()[2].is_busy)
        rests = engine.slots()[2]

    assert (busy.is_busy, busy.task, busy.prompt_tokens, busy.computed_tokens) == (True, 0, 5, 5)
    assert (busy.max_tokens, busy.sampling) == (4, Sampling(temperature=0, top_k=7))
    assert (rests.task, rests.generated_tokens) == (0, 4)
    assert chunks[-1].slot == 2


def test_tasks_are_counted_over_all_jobs():
    with opened(slots=1) as engine:
        for _ in range(2):
            read_all(engine.submit(job(n=2)))

        assert engine.slots()[0].task == 3


def test_what_was_asked_of_tasks_long_gone_is_forgotten():
    with opened(slots=1, queue=1) as engine:
        for _ in range(20):
            read_all(engine.submit(job()))

        assert len(engine._notes._notes) == 4


def test_no_text_of_a_job_is_kept_when_it_has_ended():
    text = "kept " * 8
    sampling = Sampling(
        grammar='root ::= "' + text + '"',
        grammar_triggers=(text,),
        logit_bias=((7, 1.0),),
        dry_sequence_breakers=(text,),
    )
    with opened(slots=1) as engine:
        read_all(engine.submit(job(text, stop=(text,), model=text, sampling=sampling)))
        notes, (state,) = engine._notes._notes.values(), engine.slots()

    assert "kept" not in repr(notes) + repr(state)
    assert state.sampling == Sampling(logit_bias=(), dry_sequence_breakers=())


@pytest.mark.parametrize("slot", [4, 99, -2])
def test_a_slot_that_there_is_not_is_refused(engine, slot):
    with pytest.raises(errors.Refused, match="from 0 to 3") as refused:
        engine.submit(job(slot=slot))

    assert refused.value.param == "id_slot"


def test_slots_are_not_shown_before_there_are_any():
    with opened() as engine:
        pass

    with pytest.raises(errors.UsedAfterClose):
        engine.slots()
    with pytest.raises(errors.UsedAfterClose):
        engine.submit(EmbedJob((Text("the cat"),)))
