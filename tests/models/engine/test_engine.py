"""The engine: what it takes, what it refuses, how it begins and ends."""

import os
from concurrent.futures import ThreadPoolExecutor

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import Finish, Job, Messages, Sampling, State, Terms, Text, Tokens
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from tests.support.engines import (
    FAST,
    GREEDY,
    SLOW,
    TIMEOUT,
    answer,
    endless,
    is_idle,
    job,
    opened,
    packaged_model,
    read_all,
    text_of,
)
from tests.support.waiting import wait_until


@pytest.fixture
def slow():
    """Says a word every 50 ms, in two slots; two jobs may wait."""
    with opened(model=SLOW, slots=2, queue=2) as engine:
        yield engine


def wait_for_slots(engine: Engine, n_running: int) -> None:
    wait_until(lambda: engine.stats().running == n_running)


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_an_answer_has_as_many_tokens_as_asked_for(engine, max_tokens):
    chunks = read_all(engine.submit(job(max_tokens=max_tokens)))

    assert sum(chunk.n_tokens for chunk in chunks) == max_tokens
    assert chunks[-1].finish is Finish.LENGTH


def test_no_tokens_is_an_answer_too(engine):
    (chunk,) = read_all(engine.submit(job(max_tokens=0)))

    assert (chunk.text, chunk.n_tokens, chunk.finish, chunk.prompt_tokens) == ("", 0, Finish.LENGTH, 5)


def test_without_a_limit_the_context_is_filled(engine):
    chunks = read_all(engine.submit(endless()))

    assert sum(chunk.n_tokens for chunk in chunks) == engine.info.context - 5
    assert chunks[-1].finish is Finish.LENGTH


def test_a_limit_beyond_any_context_is_no_limit(engine):
    assert read_all(engine.submit(job(max_tokens=10**12)))[-1].finish is Finish.LENGTH


def test_the_model_may_end_by_itself():
    with opened(model=FAST + "&length=3") as engine:
        chunks = read_all(engine.submit(endless()))

    assert (sum(chunk.n_tokens for chunk in chunks), chunks[-1].finish) == (4, Finish.STOP)


def test_a_model_that_may_not_end_goes_on():
    with opened(model=FAST + "&length=3") as engine:
        chunks = read_all(engine.submit(job(sampling=Sampling(temperature=0, ignore_eos=True))))

    assert chunks[-1].finish is Finish.LENGTH


def test_text_ends_before_a_stop_string(engine):
    whole = answer(engine, job(max_tokens=30))
    stop = whole[10:13]

    chunks = read_all(engine.submit(job(max_tokens=30, stop=("never said", stop))))

    assert text_of(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish is Finish.STOP


def test_what_looked_like_a_stop_string_is_said_in_the_end(engine):
    whole = answer(engine, job())

    assert answer(engine, job(stop=(whole[-3:] + "#",))) == whole


def test_prompts_and_answers_are_tasks_in_order(engine):
    prompts = tuple(map(Text, ("one", "two", "three")))
    each = [answer(engine, job(text)) for text in ("one", "two", "three")]

    chunks = read_all(engine.submit(Job(prompts, n=2, max_tokens=8, sampling=GREEDY)))

    assert [text_of(chunks, index) for index in range(6)] == [text for text in each for _ in range(2)]


def test_ids_are_as_good_as_text(engine):
    assert answer(engine, job(prompts=(Tokens(tuple(b"Hello")),))) == answer(engine, job("Hello"))


def test_more_jobs_than_slots_all_get_their_turn(engine):
    readers = [engine.submit(job()) for _ in range(20)]

    assert {text_of(read_all(reader)) for reader in readers} == {answer(engine, job())}


def test_a_job_knows_how_long_it_took(engine):
    last = read_all(engine.submit(job(max_tokens=20)))[-1]

    assert last.prompt_tokens == 5
    assert last.prompt_ms > 0
    assert last.decode_ms > 0


@pytest.mark.model
def test_what_tasks_have_cost_is_together_the_time_of_all_steps():
    """On an engine of its own, whose counters begin at zero; some tasks are cancelled, some wait for a slot."""
    with opened(model=packaged_model(), slots=4, ctx=512, threads=1) as engine:
        jobs = [
            Job((Text(f"{'word ' * (30 * i)}{i}"),), max_tokens=4, terms=Terms(caller=str(i % 3))) for i in range(8)
        ]
        readers = [engine.submit(each) for each in jobs]
        first = readers[0].take()
        readers[0].cancel()
        ends = [chunk for reader in readers for chunk in read_all(reader) if chunk.finish is not None]
        wait_until(lambda: (stats := engine.stats()) is not None and stats.running == 0)
        stats = engine.stats()

    assert first
    assert len(ends) == 8
    assert all(end.compute_ms > 0 for end in ends)
    assert ends[7].compute_ms > ends[1].compute_ms  # its prompt is seven times as long
    assert stats is not None
    assert sum(end.compute_ms for end in ends) == pytest.approx(1000 * stats.step_s, rel=0.02)


def test_a_prompt_of_too_many_tokens_is_refused_with_both_numbers(engine):
    with pytest.raises(errors.PromptTooLong, match=r"512 tokens.*512") as refused:
        engine.submit(job("x" * 512))

    assert (refused.value.n_tokens, refused.value.context, refused.value.param) == (512, 512, "prompt")


def test_the_longest_prompt_that_fits_has_room_for_one_token(engine):
    assert sum(chunk.n_tokens for chunk in read_all(engine.submit(endless(prompts=(Text("x" * 511),))))) == 1


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_read(engine):
    with pytest.raises(errors.PromptTooLong, match="some") as refused:
        engine.submit(job("x" * (16 * 512 + 1)))

    assert refused.value.n_tokens > 512


def test_too_many_ids_are_refused(engine):
    with pytest.raises(errors.PromptTooLong):
        engine.submit(job(prompts=(Tokens((1,) * 512),)))


@pytest.mark.parametrize("token", [-1, 273, 2**31, 2**70])
def test_an_unknown_id_in_a_prompt_is_refused(engine, token):
    with pytest.raises(errors.Refused, match=f"prompt: {token} is no token id") as refused:
        engine.submit(job(prompts=(Tokens((1, token)),)))

    assert refused.value.param == "prompt"


def test_which_prompt_is_at_fault_is_said(engine):
    with pytest.raises(errors.Refused) as refused:
        engine.submit(job(prompts=(Text("x"), Tokens((999,)))))

    assert refused.value.param == "prompt[1]"


@pytest.mark.parametrize("prompt", [Text(""), Tokens(())])
def test_an_empty_prompt_needs_a_token_to_begin_with(engine, prompt):
    with pytest.raises(errors.Refused, match="prompt is empty"):
        engine.submit(job(prompts=(prompt,)))


@pytest.mark.parametrize("model", ["synthetic", "other", None])
def test_any_model_name_will_do(engine, model):
    assert answer(engine, job(model=model))


def test_a_full_queue_refuses_and_takes_again_later(slow):
    readers = [slow.submit(endless()) for _ in range(2)]
    wait_for_slots(slow, 2)
    readers += [slow.submit(endless()) for _ in range(2)]

    with pytest.raises(errors.QueueFull, match="4 of at most 4"):
        slow.submit(job())

    assert slow.stats().tasks_refused == 1
    for reader in readers:
        reader.close()
    wait_until(lambda: is_idle(slow))
    assert answer(slow, job(max_tokens=1))


def test_a_job_is_queued_whole_or_not_at_all(slow):
    with slow.submit(endless(n=2)):
        wait_for_slots(slow, 2)

        with pytest.raises(errors.QueueFull):
            slow.submit(job(n=3))

        assert slow.stats().waiting == 0


def test_any_thread_may_submit(engine):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: answer(engine, job()), range(40), timeout=TIMEOUT))

    assert set(answers) == {answer(engine, job())}


def test_before_it_is_open_it_is_starting():
    engine = Engine(ModelSettings(model=FAST))

    assert engine.state is State.STARTING
    assert engine.models() == ()
    assert engine.stats() is None
    for call in (engine.check, lambda: engine.submit(job()), lambda: engine.info, lambda: engine.vocabulary(None)):
        with pytest.raises(errors.Starting):
            call()


def test_an_open_one_is_ready_and_lists_its_model(engine):
    (card,) = engine.models()

    assert engine.state is State.READY
    assert (card.id, card.fingerprint, card.meta["n_ctx"]) == ("synthetic", "bsynthetic", 512)


def test_draining_ends_every_job_with_the_reason(slow):
    readers = [slow.submit(endless()) for _ in range(2)]
    wait_for_slots(slow, 2)
    readers += [slow.submit(endless()) for _ in range(2)]

    slow.drain("it is late")

    ends = [read_all(reader)[-1] for reader in readers]
    assert [(end.finish, end.text) for end in ends] == [(Finish.ERROR, "it is late")] * 4
    assert slow.state is State.DRAINING
    with pytest.raises(errors.ShuttingDown):
        slow.submit(job())


def test_one_that_stops_accepting_finishes_what_it_took(engine):
    reader = engine.submit(job())

    engine.stop_accepting()

    with pytest.raises(errors.ShuttingDown):
        engine.submit(job())
    assert read_all(reader)[-1].finish is Finish.LENGTH


def test_closing_ends_streams_and_may_be_repeated(slow):
    reader = slow.submit(endless())
    reading = gevent.spawn(read_all, reader)
    wait_for_slots(slow, 1)

    slow.close()
    slow.close()

    assert reading.get(timeout=TIMEOUT)[-1].finish is Finish.ERROR
    assert slow.stats() is None
    with pytest.raises(errors.UsedAfterClose):
        slow.submit(job())


def test_a_reader_outlives_its_engine(slow):
    with slow.submit(endless()) as reader:
        slow.close()

        assert list(reader)[-1].finish is Finish.ERROR


def test_many_engines_live_one_after_the_other():
    before = n_threads()

    for _ in range(20):
        with opened() as engine:
            assert answer(engine, job(max_tokens=1))

    # Not "as many": a thread of an engine that an earlier test closed may have been ending when they were counted.
    wait_until(lambda: n_threads() <= before)  # Linux counts a thread for a moment after it was joined


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_number_of_threads_does_not_depend_on_the_number_of_streams(slow):
    before = n_threads()

    with slow.submit(endless(n=2)), slow.submit(endless(n=2)):
        assert n_threads() <= before


PROMPTS = [
    f"The {thing} of the sea is" for thing in ("colour", "depth", "sound", "smell", "king", "end", "salt", "god")
]


@pytest.mark.model
def test_greedy_text_is_the_same_alone_and_among_sixteen(smollm2):
    alone = [answer(smollm2, job(prompt, max_tokens=12)) for prompt in PROMPTS]

    readers = [smollm2.submit(job(prompt, max_tokens=12)) for prompt in PROMPTS * 2]

    assert [text_of(read_all(reader)) for reader in readers] == alone * 2


@pytest.mark.model
def test_a_seed_says_the_same_among_others(smollm2):
    seeded = job(PROMPTS[0], max_tokens=16, sampling=Sampling(temperature=1.0, seed=3))
    alone = answer(smollm2, seeded)

    noise = [smollm2.submit(job(prompt, max_tokens=16)) for prompt in PROMPTS]
    among = answer(smollm2, seeded)

    for reader in noise:
        reader.close()
    assert among == alone


@pytest.mark.model
def test_a_real_answer_makes_sense(smollm2):
    question = Messages(({"role": "user", "content": "What is the capital of France? One word."},))

    assert "Paris" in answer(smollm2, job(prompts=(question,), max_tokens=24))


@pytest.mark.model
def test_an_empty_prompt_begins_with_the_beginning(smollm2):
    last = read_all(smollm2.submit(job("")))[-1]

    assert last.prompt_tokens == 1


@pytest.mark.model
def test_a_nul_in_a_prompt_does_not_end_it(smollm2):
    vocabulary = smollm2.vocabulary(None)

    assert vocabulary.count(Text("a\0b and more")) > vocabulary.count(Text("a\0"))


@pytest.mark.model
def test_tokens_are_the_text(smollm2):
    text = "Grüße, 世界! 🌊 <|im_end|>"
    vocabulary = smollm2.vocabulary(None)

    assert b"".join(map(vocabulary.piece, vocabulary.encode(Text(text)))).decode() == text


@pytest.mark.model
def test_the_real_model_describes_itself(smollm2):
    (card,) = smollm2.models()

    assert (card.meta["n_vocab"], card.meta["n_ctx"], card.meta["n_ctx_train"]) == (49152, 512, 8192)
    assert "/" not in card.id
