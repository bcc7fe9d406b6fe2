"""Fronts that share one engine in a process of its own: they get what one in their own process would give."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import gevent
import pytest

from corosrv.base.errors import (
    ModelFailed,
    PromptTooLong,
    Refused,
    ShuttingDown,
    Unavailable,
    UsedAfterClose,
    WrongThread,
)
from corosrv.contracts.jobs import Finish, Sampling
from corosrv.models.engine import Engine
from corosrv.models.engine.process import connector, host, remote
from corosrv.models.engine.process.messages import PROTOCOL, WINDOW, EngineRefusal, FrontHello, front_codec
from corosrv.models.engine.process.remote import RemoteEngine
from corosrv.workers.wire.gevent_channel import GeventChannel
from tests.models.engine.process.conftest import OpenFront, has_ended, pid_of, settings_of
from tests.support.engines import (
    SLOW,
    TIMEOUT,
    answer,
    endless,
    is_idle,
    job,
    packaged_model,
    read_all,
    text_of,
)
from tests.support.gguf import write_bert, write_llama
from tests.support.waiting import wait_until as until


def test_fronts_share_one_process_which_ends_after_the_last(open_front: OpenFront, run_dir: str) -> None:
    first, second = open_front(), open_front()
    pid = pid_of(first)

    assert pid_of(second) == pid != os.getpid()
    assert answer(first, job()) == answer(second, job())
    assert first.card(None) == second.card(None)

    first.close()
    assert answer(second, job())
    assert not has_ended(pid)
    began = time.monotonic()
    second.close()
    until(lambda: has_ended(pid))
    assert time.monotonic() - began > host.LINGER - 1


def test_fronts_that_open_at_once_start_one_process(open_front: OpenFront) -> None:
    opening = [gevent.spawn(open_front) for _ in range(6)]
    gevent.joinall(opening, timeout=TIMEOUT, raise_error=True)

    assert len({pid_of(greenlet.value) for greenlet in opening}) == 1


def test_other_settings_are_another_engine(open_front: OpenFront) -> None:
    assert pid_of(open_front()) != pid_of(open_front(slots=2))


def test_fronts_with_other_defaults_for_requests_share_an_engine(open_front: OpenFront) -> None:
    first, second = open_front(temp=0.25), open_front(top_k=3)

    assert pid_of(first) == pid_of(second)
    assert (first.card(None).defaults.temperature, second.card(None).defaults.more["top_k"]) == (0.25, 3)


def test_answers_are_those_of_an_engine_in_this_process(open_front: OpenFront, engine: Engine) -> None:
    front = open_front()
    jobs = [
        job("Once"),
        job("Once", n=3, sampling=Sampling(temperature=1, seed=5)),
        job("Once", max_tokens=30, stop=("sea",)),
        job("Once", sampling=Sampling(temperature=0, n_probs=3)),
        job("Once", sampling=Sampling(temperature=0, grammar='root ::= "yes" | "no"')),
        job("Once", tells_progress=True, stream=True),
        job("Once", max_tokens=0),
    ]
    for asked in jobs:
        ours, theirs = read_all(front.submit(asked)), read_all(engine.submit(asked))
        for index in range(asked.n):
            assert text_of(ours, index) == text_of(theirs, index)
        assert [c.finish for c in ours if c.finish] == [c.finish for c in theirs if c.finish]
        assert sum(c.n_tokens for c in ours) == sum(c.n_tokens for c in theirs)
        assert [t for c in ours for t in c.tokens] == [t for c in theirs for t in c.tokens]


def test_a_vocabulary_reads_and_spells_as_the_engines(open_front: OpenFront, engine: Engine) -> None:
    ours, theirs = open_front().vocabulary(None), engine.vocabulary(None)

    assert ours.tokenize("Hello there", True, True) == theirs.tokenize("Hello there", True, True)
    assert (ours.size, ours.bos, ours.eos, ours.end_tokens) == (theirs.size, theirs.bos, theirs.eos, theirs.end_tokens)
    assert ours.spell([72, 105]) == theirs.spell([72, 105])


@pytest.mark.parametrize(
    ("bad", "error", "code"),
    [
        (job("x" * 2000), PromptTooLong, "context_length_exceeded"),
        (job(slot=9), Refused, "invalid_value"),
        (job(sampling=Sampling(grammar="root ::= (")), Refused, "invalid_grammar"),
        (job(lora=((3, 1.0),)), Refused, "invalid_value"),
        (job(sampling=Sampling(temperature=0, top_p=7.0)), Refused, "invalid_value"),
    ],
)
def test_bad_jobs_are_refused_as_by_an_engine_in_this_process(
    open_front: OpenFront, engine: Engine, bad, error, code
) -> None:
    with pytest.raises(error) as theirs:
        engine.submit(bad)
    with pytest.raises(Refused) as ours:
        open_front().submit(bad)

    assert str(ours.value) == str(theirs.value)
    assert (ours.value.status, ours.value.code, ours.value.param) == (400, code, theirs.value.param)


def test_a_full_queue_refuses_with_429(open_front: OpenFront) -> None:
    front = open_front(model=SLOW, slots=1, queue=1)
    readers = [front.submit(endless()) for _ in range(2)]

    with pytest.raises(Unavailable, match="run or wait for a slot") as full:
        front.submit(endless())

    assert (full.value.status, full.value.code) == (429, "queue_full")
    assert 1 <= (full.value.retry_after or 0) <= 120
    for reader in readers:
        reader.close()


def test_the_time_after_which_there_is_room_comes_from_the_engine(open_front: OpenFront) -> None:
    front = open_front(model=SLOW, slots=1, queue=1)
    readers = [front.submit(endless()) for _ in range(2)]
    gevent.sleep(2)  # nothing ends meanwhile, and the next end is expected after as long again

    with pytest.raises(Unavailable) as full:
        front.submit(endless())
    with pytest.raises(Unavailable) as later:
        front.submit(endless())

    assert (full.value.retry_after or 0) >= 3
    assert (later.value.retry_after or 0) > (full.value.retry_after or 0)
    for reader in readers:
        reader.close()


def test_a_cancelled_job_and_a_closed_reader_free_their_slots(open_front: OpenFront) -> None:
    front = open_front(model=SLOW)
    cancelled, closed = front.submit(endless()), front.submit(endless())
    until(lambda: (stats := front.stats()) is not None and stats.running == 2)

    cancelled.cancel()
    closed.close()

    assert read_all(cancelled)[-1].finish is Finish.CANCELLED
    until(lambda: is_idle(front))


def test_a_reader_that_is_dropped_frees_its_slot(open_front: OpenFront) -> None:
    front = open_front(model=SLOW)
    reader = front.submit(endless())
    until(lambda: (stats := front.stats()) is not None and stats.running == 1)

    del reader

    until(lambda: is_idle(front))


def test_a_front_that_leaves_frees_its_slots_and_the_others_go_on(open_front: OpenFront) -> None:
    leaving, staying = open_front(model=SLOW), open_front(model=SLOW)
    kept = staying.submit(job(max_tokens=20))
    readers = [leaving.submit(endless()) for _ in range(3)]
    until(lambda: (stats := staying.stats()) is not None and stats.running >= 3)  # kept may have ended

    leaving.close()

    until(lambda: (stats := staying.stats()) is not None and stats.running <= 1)
    assert read_all(kept)[-1].finish is Finish.LENGTH
    assert [reader.take(1)[-1].finish for reader in readers] == [Finish.ERROR] * 3


def test_a_reader_that_is_not_read_holds_up_nobody_else(open_front: OpenFront) -> None:
    front = open_front(ctx=65_536, slots=2, reader_bytes=4096)
    unread = front.submit(endless(sampling=Sampling(temperature=0, n_probs=20, ignore_eos=True)))
    until(lambda: (stats := front.stats()) is not None and stats.paused == 1)

    assert answer(front, job())
    slot = next(slot for slot in front.slots() if slot.is_busy)

    def stands_still() -> bool:
        nonlocal slot
        gevent.sleep(0.3)
        before, slot = slot, front.slots()[slot.id]
        return slot.generated_tokens == before.generated_tokens

    until(stands_still)  # paused once, it may go on until enough is on its way to this process
    assert sum(len(chunk.text) for chunk in unread.take_nowait()) < 2 * WINDOW
    until(lambda: front.slots()[slot.id].generated_tokens > slot.generated_tokens)  # and goes on
    unread.close()


@pytest.mark.model
def test_slots_are_listed_saved_restored_and_erased(open_front: OpenFront, tmp_path: Path) -> None:
    front = open_front(model=packaged_model())
    answer(front, job("A prompt that is long enough to be saved", slot=1))
    path = str(tmp_path / "slot")

    assert front.slots()[1].prompt_tokens > 0
    saved = front.save_slot(1, path)
    assert front.restore_slot(1, path) == saved
    assert front.erase_slot(1) == saved.n_tokens
    with pytest.raises(Refused, match="slot"):
        front.save_slot(3, path)
    assert front.adapters() == ()
    with pytest.raises(Refused, match="lora"):
        front.set_adapters({1: 0.5})


def test_drained_jobs_end_with_the_message_and_others_are_refused(open_front: OpenFront) -> None:
    front, other = open_front(model=SLOW), open_front(model=SLOW)
    reader, kept = front.submit(endless()), other.submit(job(max_tokens=5))

    front.drain("the server is going away")

    last = read_all(reader)[-1]
    assert (last.finish, last.text) == (Finish.ERROR, "the server is going away")
    with pytest.raises(ShuttingDown):
        front.submit(job())
    assert read_all(kept)[-1].finish is Finish.LENGTH


def test_a_closed_engine_takes_nothing(open_front: OpenFront) -> None:
    front = open_front()
    front.close()
    front.close()

    assert front.stats() is None
    with pytest.raises(UsedAfterClose):
        front.submit(job())


@pytest.mark.model
def test_an_engine_that_is_closed_while_it_loads_waits_no_longer(run_dir: str) -> None:
    front = RemoteEngine(settings_of(model=packaged_model()), run_dir)
    opening = gevent.spawn(front.open)
    until(lambda: front.pid is not None)

    front.close()

    with pytest.raises(ModelFailed, match="closed while its model was loaded"):
        opening.get(timeout=TIMEOUT)


def test_an_engine_that_is_closed_before_its_process_greets_keeps_no_connection(
    open_front: OpenFront, run_dir: str
) -> None:
    first = open_front()
    os.kill(pid_of(first), signal.SIGSTOP)
    late = RemoteEngine(settings_of(), run_dir)
    opening = gevent.spawn(late.open)
    gevent.idle()  # it has connected

    late.close()
    os.kill(pid_of(first), signal.SIGCONT)

    with pytest.raises(ModelFailed, match="engine is closed"):
        opening.get(timeout=TIMEOUT)
    assert late.pid is None


def test_an_engine_that_does_not_greet_is_ended_and_another_one_is_started(
    open_front: OpenFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_front()
    pid = pid_of(first)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(connector, "PATIENCE", 0.5)
    monkeypatch.setattr(remote, "HUNG", 10 * TIMEOUT)  # the first front would end it as well

    opening = gevent.spawn(open_front)
    until(lambda: has_ended(pid))
    monkeypatch.setattr(connector, "PATIENCE", TIMEOUT)
    second = opening.get(timeout=TIMEOUT)

    until(lambda: first.pid is not None and not first.is_recovering)
    assert pid_of(first) == pid_of(second)


def test_the_file_of_crashes_stays_while_its_process_lives(open_front: OpenFront, run_dir: str) -> None:
    front = open_front()
    (file,) = Path(run_dir).glob("*.fault")

    assert connector.EngineConnector(settings_of(), run_dir).fault_of(pid_of(front)) == ""

    assert file.exists()


def test_an_engine_is_closed_from_any_thread(open_front: OpenFront) -> None:
    front = open_front()

    gevent.get_hub().threadpool.apply(front.close)

    until(lambda: front.pid is None)


def test_jobs_are_taken_in_the_engines_thread_alone(open_front: OpenFront) -> None:
    front = open_front()

    with pytest.raises(WrongThread):
        gevent.get_hub().threadpool.apply(front.submit, (job(),))


# Bad company


def test_a_model_that_cannot_be_loaded_is_told_and_leaves_no_process(run_dir: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    front = RemoteEngine(settings_of(model=str(broken)), run_dir)

    with pytest.raises(ModelFailed):
        front.open()

    assert front.state.value == "failed"
    front.close()
    lock = next(Path(run_dir).glob("*.lock"))
    until(lambda: is_free(lock))


def is_free(lock: Path) -> bool:
    import fcntl

    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_front_hears_why_a_draft_model_is_refused(open_front: OpenFront, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model.gguf")
    draft = write_bert(tmp_path / "draft.gguf")

    with pytest.raises(ModelFailed, match=r"draft.gguf for model.gguf\): it makes vectors"):
        open_front(model=str(model), model_draft=str(draft), ctx=64)


def test_the_socket_of_an_engine_that_was_killed_is_in_nobodys_way(open_front: OpenFront, run_dir: str) -> None:
    first = open_front()
    pid = pid_of(first)
    first.close()
    os.kill(pid, signal.SIGKILL)
    until(lambda: has_ended(pid))
    assert list(Path(run_dir).glob("*.engine"))

    assert answer(open_front(), job())


def test_whoever_holds_the_lock_and_does_not_listen_is_named(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(connector, "PATIENCE", 0.3)
    digest = connector.digest_of(settings_of())
    with (Path(run_dir) / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        front = RemoteEngine(settings_of(), run_dir)
        with pytest.raises(ModelFailed, match=r"holds .*lock, but does not listen"):
            front.open()


def test_a_run_directory_that_others_may_write_is_refused(run_dir: str) -> None:
    os.chmod(run_dir, 0o777)

    with pytest.raises(ModelFailed, match="can be used by others"):
        RemoteEngine(settings_of(), run_dir).open()


def connect(front: RemoteEngine, run_dir: str) -> socket.socket:
    plain = socket.socket(socket.AF_UNIX)
    plain.settimeout(TIMEOUT)
    plain.connect(str(next(Path(run_dir).glob("*.engine"))))
    return plain


@pytest.mark.parametrize("greeting", [FrontHello(PROTOCOL + 1, ""), FrontHello(PROTOCOL, "another")])
def test_a_front_of_another_version_or_model_is_turned_away(
    open_front: OpenFront, run_dir: str, greeting: FrontHello
) -> None:
    front = open_front()
    channel = GeventChannel(connect(front, run_dir), front_codec())
    channel.send(greeting)

    answered = channel.receive()

    assert isinstance(answered, EngineRefusal)
    assert "another version" in answered.reason
    assert channel.receive() is None
    channel.close()
    assert answer(front, job())


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\x05hello", b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_cuts_its_own_connection_alone(open_front: OpenFront, run_dir: str, garbage: bytes) -> None:
    front = open_front()
    with connect(front, run_dir) as plain:
        plain.sendall(garbage)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(4096):
            pass
    assert answer(front, job())


@pytest.mark.model
def test_the_real_model_answers_as_in_this_process(open_front: OpenFront, smollm2: Engine) -> None:
    front = open_front(model=packaged_model(), slots=16, queue=64, ctx=512)

    assert answer(front, job("Once upon a time")) == answer(smollm2, job("Once upon a time"))
    assert front.card(None).capabilities == smollm2.card(None).capabilities
    assert front.info == smollm2.info
