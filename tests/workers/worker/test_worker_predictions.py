"""Predictions on a worker that is set up: to their end, cancelled, too large, unread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from corosrv.base.errors import NoCapacity
from corosrv.contracts.jobs import PredictJob
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, LogLine, OutputChunk, WorkerState
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.parent.predictor_process import PredictorProcess
from tests.workers.worker.predicting import TIMEOUT, counters, read, ready, submit, wait_for

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("leaves_nothing")]


@pytest.fixture
def worker(leaves_nothing: None) -> Iterator[PredictorProcess]:
    with gevent.Timeout(30), ready(slots=2) as worker:
        yield worker


def test_a_prediction_gives_its_messages_and_ends(worker: PredictorProcess) -> None:
    *said, last = read(submit(worker, value=[1, "two"]))

    assert said == [LogLine("stdout", "hello\n"), OutputChunk([1, "two"], 0)]
    assert isinstance(last, Done)


def test_the_permit_is_back_when_the_end_can_be_read(worker: PredictorProcess) -> None:
    for _ in range(200):
        assert counters(worker) == (2, 0, 0)
        with submit(worker, "nothing") as reader:
            assert counters(worker) == (1, 1, 0)
            assert isinstance(reader.take(TIMEOUT)[-1], Done)


def test_slots_run_at_the_same_time(worker: PredictorProcess) -> None:
    waiting = submit(worker, "wait_for_cancel")
    waiting.take(TIMEOUT)

    assert isinstance(read(submit(worker))[-1], Done)
    waiting.cancel()
    assert isinstance(read(waiting)[-1], Cancelled)


def test_a_cancel_ends_its_prediction_and_no_other(worker: PredictorProcess) -> None:
    first, second = submit(worker, "wait_for_cancel"), submit(worker, "wait_for_cancel")

    second.cancel()

    assert isinstance(read(second)[-1], Cancelled)
    assert not first.is_finished
    assert counters(worker) == (1, 1, 0)
    first.cancel()
    assert isinstance(read(first)[-1], Cancelled)


def test_leaving_the_reader_cancels_and_gives_the_slot_back(worker: PredictorProcess) -> None:
    with submit(worker, "wait_for_cancel"):
        pass

    with submit(worker, "nothing"), gevent.Timeout(TIMEOUT):
        while counters(worker) != (2, 0, 0):
            gevent.idle()


def test_context_reaches_the_worker(worker: PredictorProcess) -> None:
    (told, _) = read(submit(worker, "tell_request", context={"user": "ü"}))

    assert isinstance(told, OutputChunk)
    assert told.output["context"] == {"user": "ü"}


def submit_large(worker: PredictorProcess, directory: Path, n_bytes: int) -> OutputChunk | Failed:
    told = read(worker.submit(large_job(directory, n_bytes)))[0]
    assert isinstance(told, (OutputChunk, Failed))
    return told


def large_job(directory: Path, n_bytes: int) -> PredictJob:
    text = "x" * (n_bytes - len('{"do":"tell_request","text":""}'))
    return PredictJob("large", {"do": "tell_request", "text": text}, str(directory))


def test_an_input_over_the_limit_travels_in_a_file_that_only_its_owner_reads(
    worker: PredictorProcess, tmp_path: Path
) -> None:
    told = submit_large(worker, tmp_path, MAX_VALUE + 1)

    (file,) = tmp_path.iterdir()
    assert isinstance(told, OutputChunk)
    assert told.output == {"input_bytes": MAX_VALUE + 1, "file": str(file), "context": {}}
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_input_of_the_limit_travels_in_the_message(worker: PredictorProcess, tmp_path: Path) -> None:
    told = submit_large(worker, tmp_path, MAX_VALUE)

    assert isinstance(told, OutputChunk)
    assert told.output["file"] is None
    assert list(tmp_path.iterdir()) == []


def test_an_input_that_cannot_be_written_fails_its_prediction_and_frees_the_slot(worker: PredictorProcess) -> None:
    told = submit_large(worker, Path("/dev/null/nowhere"), MAX_VALUE + 1)

    assert isinstance(told, Failed)
    assert "NotADirectoryError" in told.error
    assert counters(worker) == (2, 0, 0)


@pytest.mark.parametrize("value", ["\ud800", object()], ids=["surrogate", "object"])
def test_an_input_that_is_no_json_fails_its_prediction_and_frees_the_slot(
    worker: PredictorProcess, value: object
) -> None:
    (failed,) = read(submit(worker, value=value))

    assert isinstance(failed, Failed)
    assert "Error: " in failed.error
    assert counters(worker) == (2, 0, 0)


def test_a_context_that_no_frame_holds_fails_its_prediction(worker: PredictorProcess) -> None:
    (failed,) = read(submit(worker, context={"user": "x" * (9 << 20)}))

    assert isinstance(failed, Failed)
    assert "FrameTooLarge" in failed.error
    assert counters(worker) == (2, 0, 0)


def test_a_full_worker_has_no_capacity(worker: PredictorProcess) -> None:
    with submit(worker, "wait_for_cancel"), submit(worker, "wait_for_cancel"):
        with pytest.raises(NoCapacity):
            submit(worker)
        assert counters(worker) == (0, 2, 0)


def test_a_reader_closed_while_its_input_is_written_leaves_no_permit(worker: PredictorProcess, tmp_path: Path) -> None:
    with worker.submit(large_job(tmp_path, MAX_VALUE + 1)):
        assert counters(worker) == (1, 1, 0)

    with gevent.Timeout(TIMEOUT):
        while counters(worker) != (2, 0, 0):
            gevent.sleep(0.001)
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [MAX_VALUE + 1]


def test_a_worker_that_dies_while_an_input_is_written_fails_it_when_nobody_writes_any_more(
    worker: PredictorProcess, tmp_path: Path
) -> None:
    reader = worker.submit(large_job(tmp_path, MAX_VALUE + 1))
    gevent.sleep(0)  # it is being written now

    worker.kill()
    *_, last = read(reader)

    assert isinstance(last, Failed)
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [MAX_VALUE + 1]
    wait_for(worker, WorkerState.STOPPED)
    assert counters(worker) == (0, 0, 2)


def test_outputs_of_any_size_arrive_whole_and_in_order(worker: PredictorProcess) -> None:
    *chunks, last = read(submit(worker, "flood", chunks=20, size=700_000))

    assert [chunk.index for chunk in chunks if isinstance(chunk, OutputChunk)] == list(range(20))
    assert all(isinstance(chunk, OutputChunk) and len(chunk.output) == 700_000 for chunk in chunks)
    assert isinstance(last, Done)


def test_a_reader_that_nobody_reads_stops_its_own_prediction_and_nothing_else(worker: PredictorProcess) -> None:
    flooding = submit(worker, "flood", chunks=1000, size=100_000)

    for _ in range(20):
        assert isinstance(read(submit(worker))[-1], Done)
    assert worker.check_health() is None

    assert sum(len(chunk.output) for chunk in flooding.take(TIMEOUT) if isinstance(chunk, OutputChunk)) < 2 << 20
    *chunks, last = read(flooding)
    assert isinstance(last, Done)
    assert chunks[-1] == OutputChunk("x" * 100_000, 999)


def test_a_closed_reader_holds_its_prediction_up_no_more(worker: PredictorProcess) -> None:
    submit(worker, "flood", chunks=100, size=100_000).close()

    with gevent.Timeout(TIMEOUT):
        while counters(worker) != (2, 0, 0):
            read(submit(worker, "nothing"))


def test_health_is_the_workers_own(worker: PredictorProcess) -> None:
    assert worker.check_health() is None
    with ready("ill:unhealthy") as ill:
        assert ill.check_health() == "ill"


def test_an_empty_reader_of_a_running_prediction_is_not_finished(worker: PredictorProcess) -> None:
    reader = submit(worker, "wait_for_cancel")
    reader.take(TIMEOUT)

    assert not reader.is_finished
    reader.cancel()
    read(reader)
    assert reader.is_finished


def test_what_is_printed_outside_of_predictions_goes_to_the_servers_log(
    worker: PredictorProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "corosrv.predictor"):
        read(submit(worker, "print_outside"))
        assert worker.check_health() is None  # answered behind it, over the same channel

    assert "stdout: to nobody" in caplog.text
    assert worker.setup.logs == ""
