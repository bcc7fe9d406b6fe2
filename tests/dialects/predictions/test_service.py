"""The one door: acceptance, ids, cancels, results, health and the end, with a worker that is driven by hand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest

from corosrv.base.errors import (
    CorosrvError,
    IdTaken,
    InvalidInput,
    NoCapacity,
    NotStreamed,
    ShuttingDown,
    Starting,
    TooManyReaders,
    WorkerGone,
)
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, FileOutput, FileRef, Metric, OutputChunk, WorkerState
from corosrv.contracts.settings import PredictionSettings
from corosrv.dialects.predictions import run
from corosrv.dialects.predictions.health import PredictorHealth, SlotCounts
from corosrv.dialects.predictions.parse import PredictionCall
from corosrv.dialects.predictions.prediction import Change, Prediction, Status
from corosrv.dialects.predictions.service import CallOutcome, PredictionService
from corosrv.dialects.predictions.webhooks import Receiver as Target
from corosrv.worker import ConcatenateIterator, Input, Secret, streaming
from corosrv.workers.wire.messages import SlotToServer
from corosrv.workers.worker.values.addresses import make_private
from tests.support.predicting import HandWorker, serving, settle, start, wait
from tests.support.receiver import Receiver

TIMEOUT = 10


def scale(x: int = 1, factor: int = Input(default=2, ge=0), key: Secret = Input(default="none")) -> int:
    return x * factor


@streaming
def words(n: int = 2) -> ConcatenateIterator[str]:
    yield from "word" * n


@pytest.fixture
def worker() -> HandWorker:
    return HandWorker(scale)


@pytest.fixture
def service(worker: HandWorker) -> Iterator[PredictionService]:
    with serving(worker) as service:
        yield service


@pytest.fixture
def speaker() -> HandWorker:
    """Its predictions can be followed."""
    return HandWorker(words)


@pytest.fixture
def followed(speaker: HandWorker) -> Iterator[PredictionService]:
    with serving(speaker) as service:
        yield service


def refusal(service: PredictionService, **call: Any) -> CorosrvError:
    with pytest.raises(CorosrvError) as refused:
        service.admit(PredictionCall(**call))
    return refused.value


def put(service: PredictionService, id: str, **call: Any) -> tuple[Prediction, CallOutcome]:
    return service.admit(PredictionCall(id=id, is_put=True, **call))


# From acceptance to result


def test_a_prediction_goes_from_its_acceptance_to_its_result(service: PredictionService, worker: HandWorker):
    prediction, found = service.admit(PredictionCall(input={"x": 3}, context={"k": "v"}))
    assert (found, prediction.status) == (CallOutcome.NEW, Status.STARTING)

    settle()
    (running,) = worker.running
    assert prediction.status is Status.PROCESSING
    assert (running.job.id, running.job.input["x"], running.job.context) == (prediction.id, 3, {"k": "v"})
    running.log("hi\n")
    running.give(Metric("a.b", 2, "increment"))
    running.output(6)
    assert prediction.view()["output"] == 6
    running.done()

    shown = wait(prediction)
    assert (shown["status"], shown["output"], shown["logs"]) == ("succeeded", 6, "hi\n")
    assert shown["metrics"] == {"a": {"b": 2}, "predict_time": 0.25}
    assert service.stats().n_ended["succeeded"] == 1


def test_a_result_is_published_when_its_permit_is_back(service: PredictionService, worker: HandWorker):
    busy: list[int] = []
    prediction = start(service)
    prediction.listen(lambda change: busy.append(service.slots.busy))

    worker.running[0].output(1)
    worker.running[0].done()

    assert busy == [1, 0]


def test_the_answer_is_known_by_its_id_before_anybody_hears_of_it(service: PredictionService, worker: HandWorker):
    seen: list[Any] = []
    prediction = start(service, id="a")
    prediction.listen(lambda change: seen.append(put(service, "a")[1] if change is Change.COMPLETED else None))

    worker.running[0].done()

    assert seen == [CallOutcome.FINISHED]


def test_secrets_are_shown_as_stars_and_handed_on_whole(service: PredictionService, worker: HandWorker):
    prediction = start(service, input={"key": "swordfish"})

    assert worker.running[0].job.input["key"] == "swordfish"
    assert "swordfish" not in str(prediction.view(with_input=True))
    assert "***" in prediction.view(with_input=True)["input"]["key"]


def test_each_prediction_has_a_directory_of_its_own_that_goes_with_it(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    directory = worker.running[0].job.output_dir
    assert not os.path.exists(directory)
    make_private(os.path.join(directory, "outputs", "deep"))
    assert os.stat(directory).st_mode & 0o777 == 0o700

    worker.running[0].done()
    wait(prediction)

    assert not os.path.exists(directory)


def test_whatever_goes_wrong_before_the_worker_has_it_keeps_the_slot(
    service: PredictionService, monkeypatch: pytest.MonkeyPatch
):
    def broken() -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "gettempdir", broken)

    with pytest.raises(OSError, match="No space left"):
        service.admit(PredictionCall(id="a"))

    assert service.slots == SlotCounts(1, 0, 0)
    assert service.find("a") is None


def test_a_run_that_is_killed_gives_its_slot_back(service: PredictionService):
    prediction, _ = service.admit(PredictionCall())

    service.shutdown(0)

    assert wait(prediction)["error"] == "ShuttingDown: server shut down"
    assert service.slots.busy == 0


# Refusals


def test_a_full_server_refuses_and_nothing_else_happens(service: PredictionService, worker: HandWorker):
    start(service)

    assert isinstance(refusal(service, id="b"), NoCapacity)

    assert "capacity" in str(refusal(service))
    assert service.find("b") is None
    assert service.stats().n_refused == 2


def test_an_input_that_is_invalid_takes_no_slot(service: PredictionService):
    refused = refusal(service, input={"x": "?", "factor": -1})

    assert isinstance(refused, InvalidInput)
    assert [error["loc"] for error in refused.errors] == [["body", "input", "x"], ["body", "input", "factor"]]
    assert service.slots.busy == 0


def test_a_stream_is_only_for_predictors_that_opted_in(service: PredictionService):
    refused = refusal(service, is_stream=True, input="not looked at")

    assert isinstance(refused, NotStreamed)
    assert "streaming" in str(refused)


@pytest.mark.parametrize(
    ("state", "kind", "word"),
    [
        (WorkerState.STARTING, Starting, "set up"),
        (WorkerState.SETUP_FAILED, WorkerGone, "setup failed: because"),
        (WorkerState.DEFUNCT, WorkerGone, "gone: because"),
        (WorkerState.STOPPED, ShuttingDown, "shutting down"),
    ],
)
def test_a_worker_that_cannot_run_anything_says_why(state: WorkerState, kind: type[CorosrvError], word: str):
    worker = HandWorker(scale)
    service = PredictionService(worker, PredictionSettings())
    if state is WorkerState.DEFUNCT:
        worker.go(WorkerState.READY)
    worker.go(state, "because")

    refused = refusal(service, input="not looked at")

    assert isinstance(refused, kind)
    assert word in str(refused)


def test_who_stops_accepts_nothing(service: PredictionService):
    service.stop_accepting()

    assert isinstance(refusal(service), ShuttingDown)


def test_no_schema_is_known_before_the_predictor_is_set_up(worker: HandWorker):
    service = PredictionService(worker, PredictionSettings())

    with pytest.raises(Starting):
        service.schema  # noqa: B018

    worker.go(WorkerState.READY)
    assert service.schema.document is worker.schema


def test_a_worker_that_goes_while_an_input_is_checked_is_noticed(
    service: PredictionService, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
):
    def check(given: object, n_bytes: int) -> dict[str, Any]:
        worker.kill()
        return {}

    monkeypatch.setattr(service.schema, "check", check)

    assert isinstance(refusal(service), WorkerGone)


def test_a_call_that_cannot_be_begun_leaves_nothing_behind(
    service: PredictionService, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
):
    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(service.webhooks, "attach", broken)

    with pytest.raises(MemoryError):
        service.admit(PredictionCall(id="a", receiver=Target(receiver.url, to_loopback=True)))

    assert worker.running[0].is_cancelled
    worker.running[0].cancelled()
    assert service.slots == SlotCounts(1, 0, 0)
    assert service.find("a") is None


# Ids


def test_a_put_of_a_running_id_is_that_prediction_whatever_it_asks_for(service: PredictionService):
    prediction = start(service, id="a", is_put=True)

    assert put(service, "a", input="not looked at") == (prediction, CallOutcome.RUNNING)


def test_a_put_of_a_finished_id_is_its_result_where_the_input_is_the_same(
    service: PredictionService, worker: HandWorker
):
    prediction = start(service, id="a", is_put=True, input={"x": 1})
    worker.running[0].done()

    assert put(service, "a", input={"x": 1}) == (prediction, CallOutcome.FINISHED)
    assert put(service, "a", input={}) == (prediction, CallOutcome.FINISHED)  # 1 is the default
    with pytest.raises(IdTaken, match="id already used"):
        put(service, "a", input={"x": 2})


def test_a_post_with_an_id_that_is_taken_is_refused(service: PredictionService, worker: HandWorker):
    prediction = start(service, id="a")
    running = refusal(service, id="a")
    worker.running[0].done()
    finished = refusal(service, id="a")

    assert isinstance(running, IdTaken)
    assert "a is running" in str(running)
    assert isinstance(finished, IdTaken)
    assert service.find("a") is prediction
    assert len(worker.running) == 1


def test_of_many_puts_of_one_id_one_runs(worker: HandWorker):
    many = HandWorker(scale, slots=50)
    with serving(many) as service:
        greenlets = [gevent.spawn(put, service, "a") for _ in range(50)]
        gevent.joinall(greenlets, TIMEOUT)

        assert [greenlet.value[1] for greenlet in greenlets].count(CallOutcome.NEW) == 1
        settle()
        assert len(many.running) == 1


def test_finished_predictions_are_forgotten_without_being_asked_for():
    worker = HandWorker(scale)
    with serving(worker, result_ttl=0.05) as service:
        was_found: list[bool] = []
        start(service, id="a").listen(lambda change: was_found.append(service.find("a") is not None))
        worker.running[0].done()
        assert was_found
        assert all(was_found)

        with gevent.Timeout(TIMEOUT):
            while service._supervisor.forget(0) is not None:
                gevent.sleep(0.01)


# Cancels


def test_a_cancel_reaches_the_worker_and_the_worker_has_the_last_word(service: PredictionService, worker: HandWorker):
    prediction = start(service, id="a")

    assert service.cancel("a")
    assert service.cancel("a")
    assert worker.running[0].is_cancelled
    assert prediction.status is Status.PROCESSING
    worker.running[0].cancelled()

    assert wait(prediction)["status"] == "canceled"
    assert not service.cancel("a")


def test_a_result_that_was_on_its_way_outruns_the_cancel(service: PredictionService, worker: HandWorker):
    prediction = start(service, id="a")
    service.cancel("a")

    worker.running[0].output(3)
    worker.running[0].done()

    assert wait(prediction)["status"] == "succeeded"


def test_what_is_canceled_at_once_is_never_shown_as_started(service: PredictionService, worker: HandWorker):
    prediction, _ = service.admit(PredictionCall(id="a"))

    service.cancel("a")
    assert worker.running[0].is_cancelled
    worker.running[0].cancelled()

    assert wait(prediction)["status"] == "canceled"
    assert "started_at" not in prediction.view()
    assert service.slots == SlotCounts(1, 0, 0)


def test_who_cancels_is_told_that_and_not_what_else_went_wrong(service: PredictionService, worker: HandWorker):
    prediction = start(service, id="a")
    service.cancel("a")

    worker.running[0].give(FileOutput("missing", "file_type", "text/plain", 0))
    worker.running[0].cancelled()

    assert wait(prediction)["status"] == "canceled"


def test_nobody_cancels_what_is_unknown(service: PredictionService):
    assert not service.cancel("a")


# Outputs that are files


def test_outputs_keep_their_order_however_long_each_takes(
    service: PredictionService, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
):
    slow = gevent.event.Event()

    def resolve(message: OutputChunk | FileOutput, directory: str) -> Any:
        if isinstance(message, FileOutput):
            if message.filename == "slow":
                slow.wait(TIMEOUT)
            return message.filename
        return message.output

    monkeypatch.setattr(service._files, "resolve", resolve)
    prediction = start(service)
    running = worker.running[0]

    running.output("first")
    running.give(FileOutput("slow", "file_type", "text/plain", 1), FileOutput("fast", "file_type", "text/plain", 2))
    running.output("last", 3)
    running.done(is_stream=True)
    assert prediction.view()["output"] == "first"
    assert service.slots.busy == 0
    slow.set()

    assert wait(prediction)["output"] == ["first", "slow", "fast", "last"]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_cancel_gives_up_outputs_that_are_uploaded(
    service: PredictionService, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, has_ended: bool
):
    begun, given_up = gevent.event.Event(), gevent.event.Event()

    def resolve(message: OutputChunk | FileOutput, directory: str) -> Any:
        begun.set()
        try:
            gevent.event.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(service._files, "resolve", resolve)
    monkeypatch.setattr(run, "CANCEL_GRACE", 0.01)
    prediction = start(service, id="a")
    worker.running[0].output("kept")
    worker.running[0].give(FileOutput("endless", "file_type", "text/plain", 1))
    assert begun.wait(TIMEOUT)
    if has_ended:
        worker.running[0].done(is_stream=True)

    assert service.cancel("a")
    if not has_ended:
        worker.running[0].cancelled()

    shown = wait(prediction)
    assert given_up.wait(TIMEOUT)
    assert (shown["status"], shown["output"]) == ("canceled", ["kept"] if has_ended else "kept")


def test_outputs_that_are_ready_in_time_are_kept_by_a_cancel(
    service: PredictionService, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
):
    ready = gevent.event.Event()
    monkeypatch.setattr(service._files, "resolve", lambda message, directory: ready.wait(TIMEOUT) and "uploaded")
    prediction = start(service, id="a")
    worker.running[0].give(FileOutput("slow", "file_type", "text/plain", 0))
    worker.running[0].done()

    service.cancel("a")
    ready.set()

    shown = wait(prediction)
    assert (shown["status"], shown["output"]) == ("canceled", "uploaded")


@pytest.mark.parametrize(
    ("end", "output"),
    [
        (Done("p", 0.1, is_stream=True), ["a"]),
        (Done("p", 0.1), "a"),
        (Failed("p", 0.1, "the worker crashed"), ["a"]),
        (Cancelled("p", 0.1, is_stream=True), ["a"]),
    ],
)
def test_the_end_says_whether_a_promised_list_was_one_unless_the_worker_could_not(
    followed: PredictionService, speaker: HandWorker, end: SlotToServer, output: Any
):
    prediction = start(followed, id="p")
    speaker.running[0].output("a")
    assert prediction.view()["output"] == ["a"]

    speaker.running[0].end(end)

    assert wait(prediction)["output"] == output


def test_a_chunk_may_say_that_it_is_a_member_of_a_list(service: PredictionService, worker: HandWorker):
    prediction = start(service)

    worker.running[0].give(OutputChunk("word", 0, is_stream=True))

    assert prediction.view()["output"] == ["word"]


def test_an_output_that_cannot_be_had_fails_the_prediction(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    running = worker.running[0]

    running.give(FileOutput("missing", "file_type", "text/plain", 0), OutputChunk("behind", 1))
    assert running.is_cancelled
    running.cancelled()

    shown = wait(prediction)
    assert shown["status"] == "failed"
    assert shown["error"].startswith("OutputFailed: the output file missing")
    assert "output" not in shown


def test_files_within_an_output_are_put_in(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    running = worker.running[0]
    os.makedirs(os.path.join(running.job.output_dir, "outputs"))
    with open(os.path.join(running.job.output_dir, "outputs", "a.txt"), "w") as file:
        file.write("hi")

    running.give(OutputChunk({"file": None}, 0, [FileRef(["file"], "a.txt", "text/plain")]))
    running.done()

    assert wait(prediction)["output"] == {"file": "data:text/plain;base64,aGk="}


@pytest.mark.parametrize(
    ("message", "n_bytes"),
    [
        (OutputChunk("word", 0), 0),
        (OutputChunk([None], 0, [FileRef([0], "made.json", "text/plain")]), len("data:text/plain;base64,eyJhIjogMX0=")),
        (FileOutput("made.json", "file_type", "text/plain", 0), len("data:text/plain;base64,eyJhIjogMX0=")),
        (FileOutput("made.json", "oversized", "application/json", 0, n_bytes=8), len('{"a": 1}')),
    ],
)
def test_a_result_is_as_large_as_its_messages_and_what_came_in_files(
    service: PredictionService, worker: HandWorker, message: OutputChunk | FileOutput, n_bytes: int
):
    prediction = start(service, n_bytes=100)
    running = worker.running[0]
    os.makedirs(os.path.join(running.job.output_dir, "outputs"))
    with open(os.path.join(running.job.output_dir, "outputs", "made.json"), "w") as file:
        file.write('{"a": 1}')

    running.give(message)  # of one byte, in these tests
    running.done()
    wait(prediction)

    assert prediction.n_bytes == 100 + 2 + n_bytes


# Following


def test_what_ends_a_stream_with_large_outputs_comes_in_pieces(followed: PredictionService, speaker: HandWorker):
    prediction = start(followed, id="p")
    reader = followed.follow(prediction, None)
    assert reader is not None
    speaker.running[0].reader.add(OutputChunk("a" * 2**20, 0), 2**20)
    speaker.running[0].reader.add(OutputChunk("b" * 2**20, 1), 2**20)
    speaker.running[0].done()

    wait(prediction)
    pieces = [item.wire for item in reader]

    completed = b"".join(pieces).partition(b"event: completed\ndata: ")[2]
    assert msgspec.json.decode(completed)["output"] == ["a" * 2**20, "b" * 2**20]
    assert max(map(len, pieces)) < 2**20 + 1000  # no piece has two outputs


def test_the_last_reader_of_a_stream_takes_its_prediction_along(followed: PredictionService, speaker: HandWorker):
    prediction = start(followed, is_stream=True)
    one, other = followed.follow(prediction, None), followed.follow(prediction, None)
    assert one is not None
    assert other is not None

    one.close()
    assert not speaker.running[0].is_cancelled
    other.close()

    assert speaker.running[0].is_cancelled


def test_a_reader_of_another_prediction_takes_nothing_along(followed: PredictionService, speaker: HandWorker):
    prediction = start(followed)

    reader = followed.follow(prediction, None)
    assert reader is not None
    reader.close()

    assert not speaker.running[0].is_cancelled


def test_an_id_that_is_used_again_is_not_bound_as_it_was(speaker: HandWorker):
    with serving(speaker, result_ttl=0) as service:
        start(service, id="a", is_stream=True)
        speaker.running[0].done()
        reader = service.follow(start(service, id="a"), None)
        assert reader is not None

        reader.close()

        assert not speaker.running[1].is_cancelled


def test_a_reader_that_fell_behind_has_not_left():
    speaker = HandWorker(words)
    with serving(speaker, stream_history=2) as service:
        prediction = start(service, is_stream=True)
        reader = service.follow(prediction, None)
        assert reader is not None
        for number in range(5):
            speaker.running[0].output("x", number)
        (lost,) = reader.take(TIMEOUT)
        assert (lost.name, lost.data["skipped"], "truncated" in lost.data["error"]) == ("error", 4, True)

        reader.close()

        assert not speaker.running[0].is_cancelled


def test_so_many_may_follow_and_no_more(followed: PredictionService):
    prediction = start(followed)
    readers = [followed.follow(prediction, None) for _ in range(1024)]

    with pytest.raises(TooManyReaders):
        followed.follow(prediction, None)

    for reader in readers:
        assert reader is not None
        reader.close()
    assert followed.follow(prediction, None) is not None


def test_predictions_that_nobody_may_follow_keep_no_events(service: PredictionService):
    prediction = start(service)

    assert service.follow(prediction, None) is None


def test_the_first_of_several_outputs_is_a_list_from_the_beginning(followed: PredictionService, speaker: HandWorker):
    prediction = start(followed)

    speaker.running[0].output("w")

    assert prediction.view()["output"] == ["w"]


# PredictorHealth


def test_health_follows_the_worker_and_its_slots(worker: HandWorker):
    service = PredictionService(worker, PredictionSettings())
    seen = [service.health]
    worker.go(WorkerState.READY)
    seen.append(service.health)
    start(service)
    seen.append(service.health)
    worker.running[0].done()
    seen.append(service.health)
    worker.kill()
    seen.append(service.health)

    assert seen == [
        PredictorHealth.STARTING,
        PredictorHealth.READY,
        PredictorHealth.BUSY,
        PredictorHealth.READY,
        PredictorHealth.DEFUNCT,
    ]


def test_poisoned_slots_are_told_and_all_of_them_are_the_end():
    worker = HandWorker(scale, slots=2)
    with serving(worker) as service:
        assert worker.permits is not None
        worker.permits.poison(0, "broken")
        assert (service.health, service.slots) == (PredictorHealth.READY, SlotCounts(2, 0, 1))

        worker.permits.poison(1, "broken")

        assert service.health is PredictorHealth.DEFUNCT


def test_the_users_own_check_is_told_and_not_kept(service: PredictionService, worker: HandWorker):
    worker.sickness = "no disk"
    assert service.check_health() == (PredictorHealth.UNHEALTHY, "no disk")
    assert service.admit(PredictionCall())[1] is CallOutcome.NEW
    assert service.check_health() == (PredictorHealth.UNHEALTHY, "no disk")

    worker.sickness = None

    assert service.check_health() == (PredictorHealth.BUSY, None)


def test_the_users_check_runs_only_where_it_can(worker: HandWorker):
    service = PredictionService(worker, PredictionSettings())

    assert service.check_health() == (PredictorHealth.STARTING, None)

    assert worker.n_checks == 0


def test_a_worker_that_is_started_again_begins_another_life(service: PredictionService, worker: HandWorker):
    worker.kill()
    assert service.health is PredictorHealth.DEFUNCT

    worker.go(WorkerState.STARTING)
    assert service.health is PredictorHealth.STARTING
    worker.go(WorkerState.READY)

    assert service.health is PredictorHealth.READY
    assert service.admit(PredictionCall())[1] is CallOutcome.NEW


# The end


def test_what_runs_ends_before_the_worker_is_stopped(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    stopping = gevent.spawn(service.shutdown, TIMEOUT)
    settle()
    assert not worker.is_stopped
    assert isinstance(refusal(service), ShuttingDown)

    worker.running[0].done()
    stopping.get(timeout=TIMEOUT)

    assert prediction.view()["status"] == "succeeded"
    assert worker.is_stopped


def test_what_does_not_end_in_time_is_failed(service: PredictionService):
    prediction = start(service)

    service.shutdown(0.05)

    assert (prediction.view()["status"], prediction.view()["error"]) == ("failed", "ShuttingDown: server shut down")


def test_who_is_in_a_hurry_does_not_wait(service: PredictionService):
    prediction = start(service)
    stopping = gevent.spawn(service.shutdown, 1000)
    settle()

    service.hasten()
    stopping.get(timeout=TIMEOUT)

    assert prediction.view()["error"] == "ShuttingDown: server shut down"


def test_a_result_that_comes_with_the_end_counts(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    worker.kill = lambda: worker.running[0].end(Done("x", 0.1))  # type: ignore[method-assign]

    service.shutdown(0)

    assert prediction.view()["status"] == "succeeded"


def test_a_worker_that_does_not_even_die_holds_nothing_up(service: PredictionService, worker: HandWorker):
    prediction = start(service)
    worker.kill = lambda: None  # type: ignore[method-assign]

    service.shutdown(0)

    assert prediction.view()["error"] == "ShuttingDown: server shut down"


def test_last_webhooks_are_delivered_before_the_end(worker: HandWorker, receiver: Receiver):
    receiver.say(503)
    with serving(worker) as service:
        start(service, receiver=Target(receiver.url, frozenset({Change.COMPLETED}), to_loopback=True))
        worker.running[0].done()

        service.shutdown(TIMEOUT)

        assert receiver.statuses == ["succeeded", "succeeded"]


def test_predictions_that_are_failed_in_the_end_tell_their_receivers(service: PredictionService, receiver: Receiver):
    start(service, receiver=Target(receiver.url, frozenset({Change.COMPLETED}), to_loopback=True))

    service.shutdown(0)

    assert [(got.body["status"], got.body["error"]) for got in receiver.got] == [
        ("failed", "ShuttingDown: server shut down")
    ]


def test_a_slow_receiver_gets_a_moment_in_the_end(service: PredictionService, receiver: Receiver):
    start(service, receiver=Target(receiver.url, frozenset({Change.COMPLETED}), to_loopback=True))
    receiver.hold()
    gevent.spawn_later(0.2, receiver.let_go)

    service.shutdown(0)

    assert service.webhooks.counts.delivered == 1


def test_nothing_is_tried_again_in_the_end(worker: HandWorker, receiver: Receiver):
    receiver.say(503, Retry_After="100")
    with serving(worker) as service:
        prediction = start(service, receiver=Target(receiver.url, frozenset({Change.COMPLETED}), to_loopback=True))
        worker.running[0].done()
        wait(prediction)

        service.shutdown(0.2)

        assert (service.webhooks.counts.failed, len(receiver.got)) == (1, 1)


def test_nothing_is_left_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = HandWorker(scale)
    with serving(worker) as service:
        for _ in range(3):
            prediction = start(service)
            running = worker.running[-1]
            make_private(running.job.output_dir)
            running.end(Cancelled("x", 0.0))
            wait(prediction)
            assert not os.path.exists(running.job.output_dir)

    assert list(tmp_path.iterdir()) == []


def test_a_start_removes_what_killed_servers_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: HandWorker):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "corosrv-server-killed" / "prediction").mkdir(parents=True)
    with serving(worker) as service:
        service.start()
        gevent.get_hub().threadpool.join()

        assert list(tmp_path.iterdir()) == []
