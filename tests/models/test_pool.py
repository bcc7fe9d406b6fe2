"""Several models behind one Worker: routed, loaded and unloaded by hand, failing apart, ended together."""

from __future__ import annotations

import os
import threading

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts import settings
from corosrv.contracts.jobs import State
from corosrv.models import served
from corosrv.models.engine import Engine
from corosrv.models.pool import ModelPool
from tests.models.conftest import MODEL_BYTES, THREE, TWO
from tests.models.requests import asking, failure, status, wait_status
from tests.support.engines import TIMEOUT, answer, job, read_all
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_first_is_loaded_at_start_and_the_others_are_not(open_pool, workshop):
    pool = open_pool(THREE)

    assert status(pool) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
    assert workshop.names() == ["a"]


def test_a_job_goes_to_the_model_it_names(open_pool):
    pool = open_pool()

    for name in ("a", "first", "b", None):
        assert answer(pool, job(model=name))

    assert {name: stats.generated_tokens for name, stats in pool.model_stats().items()} == {"a": 24, "b": 8}
    assert pool.card("first").id == pool.card(None).id == "a"


def test_a_name_that_is_none_of_theirs_is_refused(open_pool):
    with pytest.raises(errors.ModelNotFound, match="'gpt-9'"):
        open_pool().submit(job(model="gpt-9"))


def test_one_model_alone_answers_to_every_name_unless_it_is_strict(open_pool):
    assert answer(open_pool("synthetic:"), job(model="gpt-9"))
    with pytest.raises(errors.ModelNotFound):
        open_pool("synthetic:", strict_model=True).card("gpt-9")


def test_strict_names_are_the_aliases_of_the_model_and_no_others(open_pool):
    pool = open_pool("synthetic:", strict_model=True, model_alias="tiny,small")

    for name in ("tiny", "small", None):
        assert answer(pool, job(model=name))
    with pytest.raises(errors.ModelNotFound, match="'synthetic'"):
        pool.submit(job(model="synthetic"))


def test_each_model_has_the_settings_that_are_its_own(open_pool):
    pool = open_pool("a=synthetic:?slots=2,b=synthetic:?slots=3&ctx=64")

    assert pool.card("b").meta["n_ctx"] == 64
    assert {name: stats.slots for name, stats in pool.model_stats().items()} == {"a": 2, "b": 3}


ADAPTERS = "a=synthetic:?lora=/x/style.gguf:0.5,b=synthetic:?lora=/x/facts.gguf"


def test_an_adapter_is_a_model_by_the_stem_of_its_file(open_pool):
    pool = open_pool(ADAPTERS, is_ready=False)

    assert [(card.id, card.parent) for card in pool.models()] == [("a", ""), ("b", ""), ("style", "a"), ("facts", "b")]
    assert (pool.standing("style").name, pool.standing("facts").name) == ("a", "b")
    assert pool.names() == {"a", "b", "style", "facts"}
    assert pool.adapters_ready() == ()


def test_an_adapter_whose_name_is_not_its_own_is_left_out(open_pool, caplog):
    names = "a=synthetic:?lora=/x/b.gguf,b=synthetic:?lora=/x/same.gguf,c=synthetic:?lora=/y/same.gguf"
    pool = open_pool(names, is_ready=False)

    assert [(card.id, card.parent) for card in pool.models()] == [("a", ""), ("b", ""), ("c", "")]
    assert [record.args[0] for record in caplog.records if "adapter" in record.msg] == ["b", "same"]


@pytest.mark.parametrize(
    ("allowed", "usable"), [("a", {"a", "style"}), ("style", {"style"}), ("b", {"b", "facts"}), ("c", set())]
)
def test_a_key_may_use_an_adapter_by_its_name_or_by_its_model_s(workshop, allowed, usable):
    chosen = settings.load({"model": ADAPTERS, "slots": 1, "ctx": 64}, environ={})
    pool = ModelPool(chosen, workshop, may_use=lambda names: allowed in names)

    assert {card.id for card in pool.models()} == usable
    for name in {"a", "b", "style", "facts"} - usable:
        with pytest.raises(errors.ModelNotFound):
            pool.load(name)


def test_a_card_s_time_does_not_move_when_the_model_is_loaded_again(open_pool):
    pool = open_pool()
    created = {card.id: card.created for card in pool.models()}

    assert pool.card("b").created == created["b"]


def is_closed(engine: Engine) -> bool:
    try:
        engine.check()
    except errors.UsedAfterClose:
        return True
    except errors.Unavailable:
        return False
    return False


def test_a_missing_file_fails_its_own_requests_with_the_reason(open_pool, workshop):
    pool = open_pool("a=synthetic:,gone=/no/such/model.gguf")

    with pytest.raises(errors.ModelFailed, match=r"'gone' could not be loaded.*model.gguf") as failed:
        pool.card("gone")

    assert failed.value.retry_after == 1
    assert status(pool) == {"a": "loaded", "gone": "failed"}
    assert pool.state is State.READY
    assert answer(pool, job(model="a"))
    wait_until(lambda: is_closed(workshop.made[1]))


def test_no_second_try_before_its_time_and_then_a_new_one(open_pool, workshop, monkeypatch):
    pool = open_pool("a=synthetic:,gone=/no/such/model.gguf")
    for _ in range(3):
        with pytest.raises(errors.ModelFailed):
            pool.card("gone")
    assert workshop.names() == ["a", "gone"]

    pool._by_name["gone"]._retry_at = 0.0
    with pytest.raises(errors.ModelFailed) as failed:
        pool.card("gone")

    assert workshop.names() == ["a", "gone", "gone"]
    assert failed.value.retry_after == 2 * served.FIRST_RETRY_S


def test_a_first_model_that_fails_is_the_server_s_failure(open_pool):
    pool = open_pool("gone=/no/such/model.gguf,b=synthetic:", is_ready=False)

    wait_until(lambda: pool.state is State.FAILED)

    with pytest.raises(errors.ModelFailed, match=r"model\.gguf"):
        pool.check()
    assert answer(pool, job(model="b"))


def test_a_model_is_loaded_and_unloaded_by_hand(open_pool):
    pool = open_pool()

    pool.load("b")
    wait_status(pool, b="loaded")
    pool.load("b")
    pool.unload("b")
    wait_status(pool, b="unloaded")


def test_what_is_in_use_or_not_loaded_is_not_unloaded_by_hand(open_pool):
    pool = open_pool()
    with pool.submit(job(model="a")), pytest.raises(errors.Refused, match="'a' is in use"):
        pool.unload("a")

    with pytest.raises(errors.Refused, match="'b' is not loaded"):
        pool.unload("b")
    with pytest.raises(errors.ModelNotFound):
        pool.unload("x")
    with pytest.raises(errors.ModelNotFound):
        pool.load("x")


def test_a_load_is_given_up_by_hand(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    pool.load("b")
    wait_status(pool, b="loading")

    pool.unload("b")
    wait_until(lambda: pool.model_states()["b"] == "unloaded")
    workshop.may_open.set()
    gevent.idle()

    assert pool.model_states()["b"] == "unloaded"
    assert workshop.made[1].stats() is None


def test_stopping_ends_the_waiting_at_once_and_no_job(open_pool, workshop):
    pool = open_pool()
    reader = pool.submit(job(model="a"))
    workshop.may_open.clear()
    request = asking(pool, "b")

    pool.stop_accepting()

    assert isinstance(failure(request), errors.ShuttingDown)
    assert len(read_all(reader)) >= 1
    with pytest.raises(errors.ShuttingDown):
        pool.submit(job(model="a"))


def test_draining_ends_the_jobs_of_every_model(open_pool):
    pool = open_pool("a=synthetic:?tokens_per_s=20,b=synthetic:?tokens_per_s=20")
    readers = [pool.submit(job(model=name, max_tokens=400)) for name in "ab"]

    pool.drain("the end")

    assert [read_all(reader)[-1].text for reader in readers] == ["the end", "the end"]


def test_closing_during_a_load_ends_the_waiting_and_leaves_nothing_open(open_pool, workshop):
    pool = open_pool()
    workshop.may_open.clear()
    request = asking(pool, "b")

    pool.close()
    pool.close()
    workshop.may_open.set()

    assert isinstance(failure(request), errors.UsedAfterClose)
    assert set(pool.model_states().values()) == {"unloaded"}
    assert all(engine.stats() is None for engine in workshop.made)


def test_a_fork_is_refused_in_words(open_pool):
    pool = open_pool()
    pid = os.fork()
    if pid == 0:
        try:
            pool.check()
        except errors.UsedAfterFork as error:
            is_good = "--preload" in str(error) and pool.stats() is None and pool.state is State.FAILED
            os._exit(0 if is_good else 2)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert answer(pool, job())


def test_plain_threads_are_served_without_a_hub():
    texts: list[str] = []

    def serve() -> None:
        values = {"model": TWO, "slots": 4, "ctx": 512, "threads": 1, "model_bytes": MODEL_BYTES}
        pool = ModelPool(settings.load(values, environ={}), Engine)
        pool.start()
        asking = [threading.Thread(target=lambda: texts.append(answer(pool, job(model="b")))) for _ in range(4)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(TIMEOUT)
        texts.append(answer(pool, job(model="a")))
        pool.close()

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(TIMEOUT)

    assert len(texts) == 5
    assert not thread.is_alive()
