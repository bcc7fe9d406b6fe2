"""The folder of files and batches: whose things are whose, what has room, and what a name may be."""

import os
import time
from pathlib import Path

import pytest

from corosrv.base.errors import BodyTooLarge, Conflict, LimitReached, NotFound, Refused
from corosrv.dialects.openai.batches import folder as folders
from corosrv.dialects.openai.batches.answer_types import NEXT, BatchesQuery, BatchObject, FilesQuery
from corosrv.dialects.openai.batches.folder import FileFolder, OwnerFolder, StoredBatch, new_name

ID = f"file-{'0' * 32}"


@pytest.fixture
def folder(tmp_path: Path) -> FileFolder:
    return FileFolder(str(tmp_path), owner_bytes=1000, file_bytes=400)


@pytest.fixture
def own(folder: FileFolder) -> OwnerFolder:
    return folder.owned_by("me")


def put(own: OwnerFolder, content: bytes = b"x" * 10, filename: str = "lines.jsonl") -> str:
    upload = own.upload(len(content))
    try:
        upload.write(content)
        return upload.finish(filename).id
    finally:
        upload.close()


def read(own: OwnerFolder, id: str) -> bytes:
    with own.open_content(id) as file:
        return file.read()


def add_batch(own: OwnerFolder, file_id: str, status: str = "validating") -> str:
    now = int(time.time())
    batch = BatchObject(new_name("batch_"), "/v1/completions", file_id, "24h", now, now + 86_400, status=status)
    own.add_batch(StoredBatch(batch, "me", new_name("file-"), new_name("file-")))
    return batch.id


def test_a_file_is_its_owner_s_alone(folder: FileFolder, own: OwnerFolder):
    id = put(own, b"mine")

    assert read(own, id) == b"mine"
    others = folder.owned_by("you")
    for look in (others.file, others.open_content, others.delete):
        with pytest.raises(NotFound):
            look(id)
    assert others.files(FilesQuery()).data == []


def test_nobody_else_may_read_the_files(tmp_path: Path, own: OwnerFolder):
    add_batch(own, put(own))

    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert set(modes.values()) == {0o700, 0o600}


def test_a_client_s_name_is_shown_and_no_path(tmp_path: Path, own: OwnerFolder):
    id = put(own, filename="../../etc/passwd")

    assert own.file(id).filename == "../../etc/passwd"
    assert {path.parent.parent for path in tmp_path.rglob("*.data")} == {tmp_path}


@pytest.mark.parametrize("id", ["", "..", "../me", "file-1", ID.upper(), f"{ID}/..", f"batch_{'0' * 32}", ID + "\n"])
def test_what_is_no_id_is_not_found(own: OwnerFolder, id: str):
    put(own)

    with pytest.raises(NotFound):
        own.file(id)
    with pytest.raises(NotFound):
        own.content_path(id).stat() if id.startswith("file-") else own.delete(id)
    with pytest.raises(NotFound):
        own.batch(id)


def test_a_file_that_is_too_large_leaves_nothing(tmp_path: Path, own: OwnerFolder):
    with pytest.raises(BodyTooLarge):
        put(own, b"x" * 401)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_that_cannot_be_shown_leaves_nothing(tmp_path: Path, own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="No space left"):
        put(own)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("record", [b"", b"{}", b"\xff\xfe", b'{"id": "file-', b"null"])
def test_a_record_that_is_damaged_is_skipped_which_is_logged_once(
    own: OwnerFolder, caplog: pytest.LogCaptureFixture, record: bytes
):
    good, bad = put(own), put(own)
    own.place(bad, ".json").write_bytes(record)

    for _ in range(2):
        assert [file.id for file in own.files(FilesQuery()).data] == [good]
        with pytest.raises(NotFound):
            own.file(bad)

    assert caplog.text.count(f"{bad}.json is damaged, and is skipped") == 1


def test_all_files_of_one_owner_have_a_limit(folder: FileFolder, own: OwnerFolder):
    for _ in range(2):
        put(own, b"x" * 400)

    with pytest.raises(Refused, match="COROSRV_FILES_BYTES"):
        put(own, b"x" * 400)

    put(own, b"x" * 200)
    put(folder.owned_by("you"), b"x" * 400)


def test_two_uploads_at_once_do_not_share_the_last_room(own: OwnerFolder):
    put(own, b"x" * 400)
    uploads = [own.upload(None) for _ in range(2)]
    for upload in uploads:
        upload.write(b"x" * 350)

    for upload in uploads:
        with pytest.raises(Refused, match="have 1100 of 1000 bytes") as refused:
            upload.finish("a")
        if upload is uploads[1]:
            upload.close()
    assert refused.value.code == "storage_full"
    uploads[0].close()
    put(own, b"x" * 400)


def test_a_page_of_files_goes_on_behind_its_last_one(own: OwnerFolder):
    ids = []
    for _ in range(3):
        ids.append(put(own))
        time.sleep(0.002)  # the ids of one millisecond have no order

    newest = own.files(FilesQuery(limit=2))
    rest = own.files(FilesQuery(limit=2, after=newest.last_id))

    assert ([file.id for file in newest.data], newest.has_more) == ([ids[2], ids[1]], True)
    assert ([file.id for file in rest.data], rest.has_more) == ([ids[0]], False)
    assert [file.id for file in own.files(FilesQuery(order="asc")).data] == ids
    assert own.files(FilesQuery(purpose="batch_output")).data == []
    with pytest.raises(Refused, match="after"):
        own.files(FilesQuery(after=ID))


def test_the_file_of_a_batch_stays_until_the_batch_has_ended(own: OwnerFolder):
    file = put(own)
    id = add_batch(own, file, "in_progress")

    with pytest.raises(Conflict, match=id):
        own.delete(file)
    stored = own.stored(id)
    assert stored is not None
    stored.batch.enter("finalizing", 1)
    stored.batch.enter("completed", 2)
    own.save(stored)

    own.delete(file)


def test_a_batch_is_cancelling_until_whoever_runs_it_has_ended_it(own: OwnerFolder):
    id = add_batch(own, put(own))

    shown = own.cancel(id).batch

    assert (shown.status, own.batch(id).batch.status) == ("cancelling", "cancelling")
    assert shown.cancelling_at == own.cancelled_at(id) is not None
    stored = own.stored(id)
    assert stored is not None
    stored.batch.enter("cancelled", 3)
    own.save(stored)
    assert (own.batch(id).batch.status, own.batches(BatchesQuery()).data[0].status) == ("cancelled", "cancelled")
    with pytest.raises(Refused, match="cancelled"):
        own.cancel(id)


def end(own: OwnerFolder, id: str) -> StoredBatch:
    stored = own.stored(id)
    assert stored is not None
    stored.batch.enter("finalizing", 1)
    stored.batch.enter("completed", 2)
    own.content_path(stored.output).write_bytes(b"results")
    own.save(stored)
    return stored


def test_batches_of_messages_are_apart_from_those_of_files(own: OwnerFolder):
    of_file = add_batch(own, put(own))
    time.sleep(0.002)  # the ids of one millisecond have no order
    of_messages = own.add_messages("me", [b"{}\n"]).batch.id

    for id, look, cancel in (
        (of_file, own.messages, own.cancel_messages),
        (of_messages, own.batch, own.cancel),
        (of_messages, own.file, own.delete),
    ):
        with pytest.raises(NotFound):
            look(id)
        with pytest.raises(NotFound):
            cancel(id)
    assert [batch.id for batch in own.batches(BatchesQuery()).data] == [of_file]
    assert [stored.batch.id for stored in own.messages_page(None, None, 9)[0]] == [of_messages]
    assert len(own.files(FilesQuery()).data) == 1, "their lines are no file of the owner's"
    assert own.ids(*folders.BATCHES) == [of_file, of_messages], "the oldest first, whatever they are"


def test_a_batch_of_messages_is_deleted_with_all_that_it_has_once_it_has_ended(own: OwnerFolder):
    id = own.add_messages("me", [b"{}\n"]).batch.id
    with pytest.raises(Refused, match="in_progress"):
        own.forget_messages(id)
    own.cancel_messages(id)
    end(own, id)

    own.forget_messages(id)

    assert list(own.path.iterdir()) == []
    with pytest.raises(NotFound):
        own.forget_messages(id)


def test_a_batch_of_messages_counts_as_files_do(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Refused, match="COROSRV_FILES_BYTES"):
        own.add_messages("me", [b"x" * 1001])
    own.add_messages("me", [b"x" * 700])
    with pytest.raises(Refused, match="have 700 of 1000 bytes"):
        put(own, b"x" * 301)

    monkeypatch.setattr(folders, "MOST_OPEN", 1)
    with pytest.raises(LimitReached):
        own.add_messages("me", [b"x"])
    assert len(list(own.path.glob("*.data"))) == 1


def test_the_oldest_batches_of_messages_make_room_with_their_results(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "MOST_BATCHES", 1)
    end(own, own.add_messages("me", [b"x"]).batch.id)

    stored = own.add_messages("me", [b"x"])

    assert [path.stem for path in own.path.glob("*.data")] == [stored.batch.input_file_id]


def test_the_lines_of_messages_stay_while_the_batch_does(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    stored = own.add_messages("me", [b"x"])
    monkeypatch.setattr(folders, "_FORGET_S", -1.0)

    put(own)

    assert own.content_path(stored.batch.input_file_id).exists()


def test_pages_of_messages_go_both_ways(own: OwnerFolder):
    ids = []
    for _ in range(4):
        ids.append(own.add_messages("me", [b"x"]).batch.id)
        time.sleep(0.002)  # the ids of one millisecond have no order

    def page(after_id: str | None, before_id: str | None) -> tuple[list[int], bool]:
        found, has_more = own.messages_page(after_id, before_id, 2)
        return [ids.index(stored.batch.id) for stored in found], has_more

    assert page(None, None) == ([3, 2], True)
    assert page(ids[2], None) == ([1, 0], False)
    assert page(None, ids[0]) == ([2, 1], True)
    assert page(None, ids[2]) == ([3], False)
    with pytest.raises(Refused, match="before_id"):
        page(None, ID)


def test_batches_that_have_not_ended_are_few(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "MOST_OPEN", 2)
    file = put(own)
    add_batch(own, file), add_batch(own, file)

    with pytest.raises(LimitReached):
        add_batch(own, file)


def test_the_oldest_batches_that_have_ended_make_room(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "MOST_BATCHES", 2)
    file, ids = put(own), []
    for status in ("in_progress", "completed", "in_progress"):
        ids.append(add_batch(own, file, status))
        time.sleep(0.002)  # the ids of one millisecond have no order

    assert own.ids("batch_") == [ids[0], ids[2]]


def test_a_batch_needs_a_file_that_is_for_batches(own: OwnerFolder):
    result = new_name("file-")
    own.path.mkdir(exist_ok=True)
    own.content_path(result).write_bytes(b"{}")
    own.publish(result, "out", "batch_output")

    with pytest.raises(NotFound):
        add_batch(own, ID)
    with pytest.raises(Refused, match="purpose"):
        add_batch(own, result)


def test_uploads_of_a_killed_server_go_after_a_while(own: OwnerFolder, monkeypatch: pytest.MonkeyPatch):
    kept = put(own)
    own.place(new_name("file-"), ".part").write_bytes(b"half")
    running = own.stored(add_batch(own, kept, "in_progress"))
    assert running is not None
    own.content_path(running.output).write_bytes(b"results")
    monkeypatch.setattr(folders, "_FORGET_S", -1.0)

    put(own)

    assert not list(own.path.glob("*.part"))
    assert own.content_path(running.output).exists()
    assert read(own, kept)


def test_one_process_at_a_time_has_the_lock(folder: FileFolder):
    first = folder.lock()
    assert first is not None

    assert folder.lock() is None
    first.close()

    second = folder.lock()
    assert second is not None
    second.close()


STATES = sorted(NEXT)


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_a_batch_moves_by_its_table(before: str, after: str):
    batch = BatchObject("batch_1", "/v1/completions", ID, "24h", 0, 1, status=before)

    if after in NEXT[before]:
        batch.enter(after, 5.5)
        assert (batch.status, getattr(batch, f"{after}_at")) == (after, 5)
    else:
        with pytest.raises(RuntimeError):
            batch.enter(after, 5.5)
