"""Runs of batches with a caller by hand: room, retries, what ends a batch, and what another process finds."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event
from msgspec import Raw

from corosrv.base.errors import NotFound, Refused
from corosrv.dialects.anthropic.answers import MessageBatch, MessageBatchCounts, batch_answer
from corosrv.dialects.anthropic.routes import ResultPieces
from corosrv.dialects.openai.batches.answer_types import BatchObject, FilesQuery
from corosrv.dialects.openai.batches.folder import FileFolder, OwnerFolder, StoredBatch, new_name
from corosrv.dialects.openai.batches.lines import RequestLine, request_text
from corosrv.dialects.openai.batches.runner import BatchRunner
from corosrv.dialects.openai.batches.running import Gate, LineReply, reply_of
from tests.support.waiting import wait_until

URL = "/v1/completions"
OWNER = "me"


@dataclass
class HandCaller:
    """Answers lines as `answer` says, once `gate` is open."""

    answer: Callable[[str, int], LineReply] = lambda id, n: LineReply(200, "req_1", b'{"a": 1}')
    is_open: Event = field(default_factory=Event)
    calls: Counter[str] = field(default_factory=Counter)
    n_running: int = 0
    most_running: int = 0

    def call(self, line: RequestLine, deadline: float) -> LineReply:
        self.calls[line.custom_id] += 1
        self.n_running += 1
        self.most_running = max(self.most_running, self.n_running)
        try:
            assert self.is_open.wait(30)
            return self.answer(line.custom_id, self.calls[line.custom_id])
        finally:
            self.n_running -= 1


@dataclass
class Place:
    """A folder, and processes that run its batches."""

    path: Path
    caller: HandCaller
    runners: list[BatchRunner] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    @property
    def folder(self) -> FileFolder:
        return FileFolder(str(self.path), 1_000_000, 1_000_000)

    def find_caller(self, owner: str) -> HandCaller:
        self.owners.append(owner)
        return self.caller

    def runner(self, n: int = 4) -> BatchRunner:
        runner = BatchRunner(self.folder, self.find_caller, Gate(n), 10_000)
        self.runners.append(runner)
        runner.start()
        return runner

    def batch(self, *texts: str, seconds: float = 1000.0, owner: str = OWNER) -> str:
        own = self.folder.owned_by(owner)
        upload = own.upload(None)
        upload.write("\n".join(texts).encode())
        file = upload.finish("lines")
        upload.close()
        now = time.time()
        batch = BatchObject(new_name("batch_"), URL, file.id, "24h", int(now), int(now + seconds))
        own.add_batch(StoredBatch(batch, owner, new_name("file-"), new_name("file-")))
        return batch.id

    def show(self, id: str) -> BatchObject:
        return self.folder.owned_by(OWNER).batch(id).batch

    def wait(self, id: str) -> BatchObject:
        wait_until(lambda: self.show(id).is_ended, "the batch's end")
        return self.show(id)

    def results(self, file: str | None) -> list[dict[str, Any]]:
        if file is None:
            return []
        with self.folder.owned_by(OWNER).open_content(file) as content:
            return [json.loads(text) for text in content.read().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, HandCaller())
    place.caller.is_open.set()
    yield place
    for runner in place.runners:
        runner.close()


def line(id: str) -> str:
    return json.dumps({"custom_id": id, "method": "POST", "url": URL, "body": {"prompt": "x"}})


def lines(n: int) -> list[str]:
    return [line(f"line-{number}") for number in range(n)]


def test_each_line_is_answered_once_and_few_run_at_once(place: Place):
    id = place.batch(*lines(20))
    place.caller.is_open.clear()

    place.runner(n=3)
    wait_until(lambda: place.caller.n_running == 3)
    place.caller.is_open.set()
    batch = place.wait(id)

    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert (batch.request_counts.total, batch.request_counts.completed) == (20, 20)
    assert Counter(one["custom_id"] for one in place.results(batch.output_file_id)) == place.caller.calls
    assert (place.caller.most_running, set(place.owners)) == (3, {OWNER})
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None


def test_failed_lines_have_a_file_of_their_own(place: Place):
    place.caller.answer = lambda id, n: LineReply(400 if id == "line-1" else 200, "req_1", b'{"error": {}}')
    id = place.batch(*lines(3))

    place.runner()
    batch = place.wait(id)

    (failed,) = place.results(batch.error_file_id)
    assert failed["custom_id"] == "line-1"
    assert failed["response"] == {"status_code": 400, "request_id": "req_1", "body": {"error": {}}}
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)


def test_what_is_refused_for_lack_of_room_is_tried_again(place: Place):
    place.caller.answer = lambda id, n: LineReply(200 if n > 2 else 503, "", b"{}", None if n > 2 else 0.01)
    id = place.batch(*lines(3))

    place.runner()
    batch = place.wait(id)

    assert (batch.request_counts.completed, set(place.caller.calls.values())) == (3, {3})


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"retry-after": "7"}, 7.0),
        (429, {}, None),
        (503, {}, 1.0),
        (503, {"retry-after": "100000"}, 300.0),
        (200, {"retry-after": "7"}, None),
        (500, {}, None),
    ],
)
def test_the_next_try_waits_as_long_as_the_server_says(status: int, headers: dict[str, str], wait: float | None):
    assert reply_of(status, headers, b"").wait == wait


@pytest.mark.parametrize(
    ("body", "shown"), [(b'{\n "a": [1]\n}', {"a": [1]}), (b"a text\nof two", "a text\nof two"), (b"", None)]
)
def test_an_answer_fits_into_one_line(body: bytes, shown: Any):
    response = LineReply(200, "r", body).response()

    assert b"\n" not in bytes(response.body)
    assert json.loads(bytes(response.body)) == shown


def test_a_batch_with_bad_lines_fails_and_runs_none(place: Place):
    id = place.batch(line("a"), line("a"), "{")

    place.runner()
    batch = place.wait(id)

    assert batch.errors is not None
    assert [(fault.line, fault.code) for fault in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json"),
    ]
    assert (batch.status, place.caller.calls) == ("failed", Counter())


def test_a_cancelled_batch_keeps_the_answers_that_it_has(place: Place):
    id = place.batch(*lines(50))
    place.caller.is_open.clear()
    place.caller.answer = lambda id, n: (place.caller.is_open.clear(), LineReply(200, "", b"{}"))[1]
    place.runner(n=1)
    wait_until(lambda: place.caller.n_running == 1)
    place.caller.is_open.set()
    wait_until(lambda: len(place.caller.calls) == 2, "one answer, and the next line")

    place.folder.owned_by(OWNER).cancel(id)
    batch = place.wait(id)

    assert (batch.status, place.caller.n_running) == ("cancelled", 0)
    assert [one["custom_id"] for one in place.results(batch.output_file_id)] == ["line-0"]
    assert batch.cancelling_at is not None
    not_run = place.results(batch.error_file_id)
    assert {one["error"]["code"] for one in not_run} == {"batch_cancelled"}
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, len(not_run)) == (1, 49)


def test_lines_that_did_not_run_in_time_are_told(place: Place):
    id = place.batch(*lines(3), seconds=2)
    place.caller.answer = lambda id, n: LineReply(503, "", b"{}", 60.0)

    place.runner()
    batch = place.wait(id)

    results = place.results(batch.error_file_id)
    assert (batch.status, batch.request_counts.failed) == ("expired", 3)
    assert {(one["response"], one["error"]["code"]) for one in results} == {(None, "batch_expired")}


def messages(place: Place, *ids: str, seconds: float = 3600) -> str:
    """Makes a batch of messages, which are named so."""
    own = place.folder.owned_by(OWNER)
    stored = own.add_messages(OWNER, [request_text(id, "/v1/messages", Raw(b"{}")) for id in ids])
    stored.batch.expires_at = int(time.time() + seconds)
    own.save(stored)
    return stored.batch.id


def wait_for_messages(place: Place, id: str) -> MessageBatch:
    own = place.folder.owned_by(OWNER)
    wait_until(lambda: own.messages(id).batch.is_ended, "the batch's end")
    return batch_answer(own.messages(id), "here")


def message_results(place: Place, id: str) -> dict[str, dict[str, Any]]:
    pieces = ResultPieces(place.folder.owned_by(OWNER), id)
    found = [json.loads(text) for text in b"".join(pieces).splitlines()]
    pieces.close()
    return {one["custom_id"]: one["result"] for one in found}


def test_messages_have_the_results_of_anthropic_s_api(place: Place):
    refused = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}, "request_id": "r"}'
    answers = {"a": LineReply(200, "", b'{"id": "msg_1"}'), "b": LineReply(400, "", refused)}
    place.caller.answer = lambda id, n: answers.get(id, LineReply(502, "req_c", b"a proxy's page"))
    id = messages(place, "a", "b", "c")

    place.runner()
    batch = wait_for_messages(place, id)

    assert batch.request_counts == MessageBatchCounts(0, succeeded=1, errored=2, canceled=0, expired=0)
    assert (batch.processing_status, batch.results_url) == ("ended", "here")
    found = message_results(place, id)
    assert found["a"] == {"type": "succeeded", "message": {"id": "msg_1"}}
    assert found["b"] == {"type": "errored", "error": json.loads(refused)}
    assert found["c"]["error"]["error"] == {"type": "api_error", "message": 'status 502: "a proxy\'s page"'}
    assert found["c"]["error"]["request_id"] == "req_c"
    assert place.folder.owned_by(OWNER).files(FilesQuery()).data == [], "results are no files of the owner's"


def test_messages_that_did_not_run_in_time_have_expired(place: Place):
    place.caller.answer = lambda id, n: LineReply(200, "", b"{}") if id == "a" else LineReply(503, "", b"", 60.0)
    id = messages(place, "a", "b", "c", seconds=2)

    place.runner()
    batch = wait_for_messages(place, id)

    assert batch.request_counts == MessageBatchCounts(0, succeeded=1, errored=0, canceled=0, expired=2)
    assert message_results(place, id)["b"] == {"type": "expired"}


def test_messages_of_a_cancelled_batch_that_did_not_run_are_canceled(place: Place):
    place.caller.is_open.clear()
    id = messages(place, *(f"a{number}" for number in range(20)))
    own = place.folder.owned_by(OWNER)
    place.runner(n=2)
    wait_until(lambda: place.caller.n_running == 2)
    with pytest.raises(Refused, match="in_progress"):
        ResultPieces(own, id)

    stored = own.cancel_messages(id)
    assert batch_answer(stored, "").processing_status == "canceling"
    assert batch_answer(stored, "").request_counts.processing == 20
    batch = wait_for_messages(place, id)

    assert batch.request_counts == MessageBatchCounts(0, succeeded=0, errored=0, canceled=20, expired=0)
    assert batch.cancel_initiated_at is not None
    assert {one["type"] for one in message_results(place, id).values()} == {"canceled"}


def test_messages_for_whose_results_there_is_no_room_are_errors(place: Place, monkeypatch: pytest.MonkeyPatch):
    from corosrv.dialects.openai.batches import runner as runners

    monkeypatch.setattr(runners, "_LOOK_S", 0.05)
    place.caller.is_open.clear()
    id = messages(place, "a", "b")
    own = place.folder.owned_by(OWNER)
    place.runner(n=1)
    wait_until(lambda: place.caller.n_running == 1)
    own.content_path(new_name("file-")).write_bytes(b"x" * 1_000_001)
    batch = wait_for_messages(place, id)

    assert batch.request_counts == MessageBatchCounts(0, succeeded=0, errored=2, canceled=0, expired=0)
    assert "COROSRV_FILES_BYTES" in message_results(place, id)["a"]["error"]["error"]["message"]


def test_results_of_messages_that_somebody_has_overwritten_are_not_shown(place: Place):
    id = messages(place, "a")
    own = place.folder.owned_by(OWNER)
    own.content_path(own.messages(id).output).write_bytes(b"not an answer\n")

    place.runner()
    batch = wait_for_messages(place, id)

    assert batch.request_counts.errored == 1
    with pytest.raises(NotFound, match="overwritten"):
        ResultPieces(own, id)


def test_another_process_goes_on_where_the_first_one_ended(place: Place):
    def answer(id: str, n: int) -> LineReply:
        if len(place.caller.calls) == 5:
            place.caller.is_open.clear()
        return LineReply(200, "", b"{}")

    id = place.batch(*lines(10))
    place.caller.answer = answer
    first, second = place.runner(n=2), place.runner(n=2)
    wait_until(lambda: place.caller.n_running == 2 and not place.caller.is_open.is_set())

    first.close()
    assert place.caller.n_running == 0
    place.caller.is_open.set()
    batch = place.wait(id)
    second.close()

    answered = Counter(one["custom_id"] for one in place.results(batch.output_file_id))
    assert (batch.status, len(answered), set(answered.values())) == ("completed", 10, {1})
    assert sum(place.caller.calls.values()) <= 12, "only lines that ran when it ended run again"


def test_a_batch_goes_on_after_a_fault_of_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch):
    from corosrv.dialects.openai.batches import runner as runners

    monkeypatch.setattr(runners, "_TRY_AGAIN_S", 0.05)
    add, faults = runners.ResultFile.add, iter([OSError(28, "No space left on device")])

    def add_or_fail(*arguments: Any) -> None:
        if fault := next(faults, None):
            raise fault
        add(*arguments)

    monkeypatch.setattr(runners.ResultFile, "add", add_or_fail)
    id = place.batch(*lines(5))

    place.runner(n=1)
    batch = place.wait(id)

    answered = Counter(one["custom_id"] for one in place.results(batch.output_file_id))
    assert (batch.status, len(answered), set(answered.values())) == ("completed", 5, {1})


def test_a_full_disk_is_told_in_words(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    from corosrv.dialects.openai.batches import runner as runners

    monkeypatch.setattr(runners, "_TRY_AGAIN_S", 0.05)
    save, faults = OwnerFolder.save, iter([OSError(28, "No space left on device")])

    def save_or_fail(*arguments: Any) -> None:
        if fault := next(faults, None):
            raise fault
        save(*arguments)

    id = place.batch(*lines(5))
    monkeypatch.setattr(OwnerFolder, "save", save_or_fail)
    place.runner()

    assert place.wait(id).status == "completed"
    assert "goes on in 0.05 s: [Errno 28] No space left on device" in caplog.text
    assert "Traceback" not in caplog.text + capsys.readouterr().err


def test_a_folder_that_was_removed_and_is_there_again_has_one_runner(tmp_path: Path, place: Place):
    runner = place.runner()
    wait_until(lambda: (tmp_path / "lock").exists(), "the lock")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()

    runner.wake()

    wait_until(lambda: (tmp_path / "lock").exists(), "the lock of the new folder")
    assert place.folder.lock() is None


@dataclass
class HandStats:
    """The counters of a decode loop that a test sets."""

    slots: int = 8
    running: int = 0
    waiting: int = 0


def test_lines_wait_while_others_wait_and_few_run_beside_others():
    stats = HandStats(waiting=1)
    gate: Gate = Gate(8, lambda: stats)  # type: ignore[arg-type, return-value]
    is_over, running = Event(), []

    def run() -> None:
        with gate.place():
            stats.running += 1
            running.append(1)
            is_over.wait(30)

    greenlets = [gevent.spawn(run) for _ in range(12)]
    gevent.sleep(0.15)  # some looks
    assert running == []

    stats.waiting, stats.running = 0, 3
    wait_until(lambda: len(running) == 2)
    gevent.sleep(0.15)
    assert len(running) == 2, "a quarter beside three others"

    stats.running -= 3
    wait_until(lambda: len(running) == 8)
    is_over.set()
    gevent.joinall(greenlets, timeout=0.1)
    gevent.killall(greenlets)
    assert gate.n_running == 0


def test_a_slot_stays_free_beside_others():
    stats = HandStats(slots=4, running=3)
    gate: Gate = Gate(8, lambda: stats)  # type: ignore[arg-type, return-value]
    entered = Event()

    def run() -> None:
        with gate.place():
            entered.set()

    greenlet = gevent.spawn(run)
    assert not entered.wait(0.15)
    stats.running = 2
    assert entered.wait(5)
    greenlet.join(5)


def test_no_owner_s_batches_keep_those_of_another_from_running(place: Place):
    place.caller.is_open.clear()
    for number in range(3):
        place.batch(line(f"mine-{number}"))
        gevent.sleep(0.002)  # the ids of one millisecond have no order
    place.batch(line("yours"), owner="you")

    place.runner(n=20)
    wait_until(lambda: place.caller.n_running == 3)

    assert sorted(place.caller.calls) == ["mine-0", "mine-1", "yours"]


def test_a_batch_whose_answers_somebody_has_overwritten_fails(place: Place):
    id = place.batch(*lines(2))
    own = place.folder.owned_by(OWNER)
    stored = own.stored(id)
    assert stored is not None
    own.content_path(stored.output).write_bytes(b"not an answer\n")

    place.runner()
    batch = place.wait(id)

    assert batch.errors is not None
    assert (batch.status, batch.errors.data[0].code, place.caller.calls) == ("failed", "results_broken", Counter())


def test_a_batch_whose_file_is_gone_fails(place: Place):
    id = place.batch(*lines(2))
    own = place.folder.owned_by(OWNER)
    own.content_path(own.batch(id).batch.input_file_id).unlink()

    place.runner()
    batch = place.wait(id)

    assert batch.errors is not None
    assert (batch.status, batch.errors.data[0].code) == ("failed", "file_not_found")
