"""Keeps the files and batches of all owners in a folder: each owner's in a folder of its own, of mode 0700.

A file has its content and a record beside it, which is written last: without the record there is no file. Records are
replaced by rename. No name that a client sends is part of a path. Everything here waits for the disk: call it in a
thread.

A batch of Anthropic's messages has an id of its own kind, and content without records: clients see no files of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from corosrv.base.errors import BodyTooLarge, Conflict, LimitReached, NotFound, Refused
from corosrv.dialects.openai.batches import answer_types
from corosrv.dialects.openai.batches.answer_types import ends, first, rest_behind

log = logging.getLogger("corosrv.batches")

MOST_FILES = 2000  # of one owner
MOST_BATCHES = 1000  # of one owner; the oldest that have ended make room for new ones
MOST_OPEN = 100  # batches of one owner that have not ended
_LOOK_AGAIN = 16 << 20  # bytes of an upload between two looks at the room
_FORGET_S = 3600.0  # after which an upload that got nothing is over: its server was killed
_OF_FILE, _OF_MESSAGES = BATCHES = ("batch_", "msgbatch_")  # what the ids of batches begin with
_ID = re.compile(r"(?:file-|batch_|msgbatch_)[0-9a-f]{32}")
_MESSAGES_S = 86_400  # in which batches of messages run
_RECORD, _CONTENT, _PART, _CANCEL, _NEW = ".json", ".data", ".part", ".cancel", ".new"

T = TypeVar("T")


class StoredBatch(msgspec.Struct):
    """A batch, its owner, and the ids that its two files of results get when it ends."""

    batch: answer_types.BatchObject
    owner: str
    output: str
    errors: str
    n_not_run: int = 0  # lines that have an error instead of an answer, at the end

    @property
    def content_ids(self) -> tuple[str, str, str]:
        return self.batch.input_file_id, self.output, self.errors


_batch_record = msgspec.json.Decoder(StoredBatch)
_file_record = msgspec.json.Decoder(answer_types.FileObject)


def new_name(prefix: str) -> str:
    """Returns an id that sorts behind those that were made before."""
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def is_of_messages(id: str) -> bool:
    """Tells batches of Anthropic's messages from those of files."""
    return id.startswith(_OF_MESSAGES)


class FileFolder:
    """The folder of all owners. Usable from any thread and by several processes."""

    def __init__(self, path: str, owner_bytes: int, file_bytes: int) -> None:
        """`owner_bytes`: of all files of one owner; `file_bytes`: of one that is uploaded."""
        self._path = Path(path)
        self._owner_bytes = owner_bytes
        self._file_bytes = file_bytes

    def owned_by(self, owner: str) -> OwnerFolder:
        return self._folder(hashlib.sha256(owner.encode()).hexdigest())

    def _folder(self, name: str) -> OwnerFolder:
        return OwnerFolder(self._path / name, self._owner_bytes, self._file_bytes)

    def owners(self) -> list[OwnerFolder]:
        with os.scandir(self._path) as entries:
            return [self._folder(entry.name) for entry in entries if len(entry.name) == 64]

    def lock(self) -> io.FileIO | None:
        """Takes the lock for running batches; None if another process has it. Closing it gives it back."""
        file = io.FileIO(os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


class OwnerFolder:
    """The files and batches of one owner."""

    def __init__(self, path: Path, most_bytes: int, file_bytes: int) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._file_bytes = file_bytes

    def ids(self, *prefixes: str) -> list[str]:
        """Lists the ids that begin with one of these, the oldest first."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        found = (name.removesuffix(_RECORD) for name in names if name.startswith(prefixes) and name.endswith(_RECORD))
        return sorted(filter(_ID.fullmatch, found), key=lambda id: id[-32:])

    def check_room(self, n_more: int = 0) -> None:
        """Raises Refused where the owner's files have more than their part of the bytes, or are too many."""
        sizes = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            sizes = [entry.stat().st_size for entry in entries if entry.name.endswith((_CONTENT, _PART))]
        if sum(sizes) + n_more > self._most_bytes:
            words = f"your files have {sum(sizes)} of {self._most_bytes} bytes (COROSRV_FILES_BYTES): delete some"
            raise Refused(f"file: {words}", "file", "storage_full")
        if len(sizes) >= MOST_FILES:
            raise Refused(f"file: you have {len(sizes)} files, which is the limit: delete some", "file", "storage_full")

    # Files

    def upload(self, n_bytes: int | None) -> Upload:
        """Begins a file. `n_bytes`: about how many it will have, if that is known. Raises Refused."""
        self.check_room(n_bytes or 0)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._forget_uploads()
        return Upload(self, new_name("file-"), self._file_bytes)

    def _forget_uploads(self) -> None:
        """Removes content without a record that nobody has written to for long."""
        paths = [path for kind in (_PART, _CONTENT, _NEW) for path in self.path.glob(f"*{kind}")]
        if paths := [path for path in paths if not path.with_suffix(_RECORD).exists() and _is_old(path)]:
            needed = {id for stored in self._batches() for id in stored.content_ids}
            for path in paths:
                if path.stem not in needed:
                    path.unlink(missing_ok=True)

    def place(self, id: str, suffix: str) -> Path:
        """Returns the path of what belongs to an id. Raises NotFound for what is none."""
        if not _ID.fullmatch(id):
            kind = "batch" if suffix == _CANCEL else "file"
            raise NotFound(f"there is no {kind} '{id[:80]}' here", "id", f"{kind}_not_found")
        return self.path / f"{id}{suffix}"

    def content_path(self, id: str) -> Path:
        return self.place(id, _CONTENT)

    def publish(self, id: str, filename: str, purpose: answer_types.Purpose) -> answer_types.FileObject:
        """Makes a file of content that is there. Twice is harmless."""
        content = self.content_path(id)
        with content.open("rb") as source:
            os.fsync(source.fileno())
            record = answer_types.FileObject(id, os.fstat(source.fileno()).st_size, int(time.time()), filename, purpose)
        self._write(self.place(id, _RECORD), record)
        return record

    def file(self, id: str, param: str = "id") -> answer_types.FileObject:
        """Raises NotFound."""
        found = self._read(id, "file-", _file_record)
        if found is None:
            raise NotFound(f"{param}: there is no file '{id[:80]}' here", param, "file_not_found")
        return found

    def open_content(self, id: str) -> io.FileIO:
        """Raises NotFound. Whoever calls closes it."""
        self.file(id)
        return io.FileIO(self.content_path(id), "r")

    def delete(self, id: str) -> None:
        """Raises NotFound, and Conflict while a batch needs the file."""
        self.file(id)
        for stored in self._batches():
            if stored.batch.input_file_id == id and not stored.batch.is_ended:
                raise Conflict(f"id: the batch {stored.batch.id} reads this file: cancel it first", "id")
        self.place(id, _RECORD).unlink(missing_ok=True)
        self.content_path(id).unlink(missing_ok=True)

    def files(self, query: answer_types.FilesQuery) -> answer_types.FileList:
        """Returns a page. Raises Refused."""
        ids = rest_behind(self.ids("file-"), query.after, query.order)
        found = (file for id in ids if (file := self._read(id, "file-", _file_record)) is not None)
        data, has_more = first((file for file in found if query.purpose in (None, file.purpose)), query.limit)
        return answer_types.FileList(data, *ends([file.id for file in data]), has_more)

    # Batches

    def add_batch(self, stored: StoredBatch) -> None:
        """Raises NotFound without its file, Refused for one of another purpose, and LimitReached."""
        file = self.file(stored.batch.input_file_id, "input_file_id")
        if file.purpose != "batch":
            raise Refused(f"input_file_id: the purpose of {file.id} is {file.purpose}, not batch", "input_file_id")
        self._make_room()
        self.save(stored)

    def add_messages(self, owner: str, lines: Sequence[bytes]) -> StoredBatch:
        """Makes a batch of lines that were checked. Raises Refused where there is no room, and LimitReached."""
        self.check_room(sum(map(len, lines)))
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._forget_uploads()
        self._make_room()
        now = int(time.time())
        batch = answer_types.BatchObject(
            id=new_name(_OF_MESSAGES),
            endpoint="/v1/messages",
            input_file_id=new_name("file-"),
            completion_window="24h",
            created_at=now,
            expires_at=now + _MESSAGES_S,
            status="in_progress",
            in_progress_at=now,
            request_counts=answer_types.RequestCounts(total=len(lines)),
        )
        path = self.content_path(batch.input_file_id)
        stored = StoredBatch(batch, owner, new_name("file-"), new_name("file-"))
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            self.save(stored)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return stored

    def _make_room(self) -> None:
        """Forgets the oldest batches that have ended, where there are many. Raises LimitReached."""
        known = list(self._batches())
        if sum(not other.batch.is_ended for other in known) >= MOST_OPEN:
            raise LimitReached(f"{MOST_OPEN} of your batches have not ended: wait, or cancel some", 60.0)
        ended = [other for other in known if other.batch.is_ended]
        for other in ended[: max(len(known) + 1 - MOST_BATCHES, 0)]:
            self._forget(other)

    def _forget(self, stored: StoredBatch) -> None:
        """Removes a batch that has ended, and the content that clients see nothing of."""
        for suffix in (_CANCEL, _RECORD):
            self.place(stored.batch.id, suffix).unlink(missing_ok=True)
        if is_of_messages(stored.batch.id):
            for id in stored.content_ids:
                self.content_path(id).unlink(missing_ok=True)

    def messages(self, id: str) -> StoredBatch:
        """Returns a batch of messages as clients see it. Raises NotFound."""
        return self.batch(id, _OF_MESSAGES)

    def cancel_messages(self, id: str) -> StoredBatch:
        """Asks whoever runs a batch to end it. Raises NotFound, and Refused for one that has ended."""
        return self.cancel(id, _OF_MESSAGES)

    def forget_messages(self, id: str) -> None:
        """Removes a batch of messages. Raises NotFound, and Refused for one that has not ended."""
        stored = self.messages(id)
        if not stored.batch.is_ended:
            raise Refused(f"id: the batch is {stored.batch.status}: cancel it, or wait for its end", "id")
        self._forget(stored)

    def save(self, stored: StoredBatch) -> None:
        self._write(self.place(stored.batch.id, _RECORD), stored)

    def stored(self, id: str) -> StoredBatch | None:
        """Returns a batch as its run has written it last."""
        return self._read(id, BATCHES, _batch_record)

    def batch(self, id: str, prefix: str = _OF_FILE) -> StoredBatch:
        """Returns a batch as clients see it. Raises NotFound."""
        stored = self.stored(id) if id.startswith(prefix) else None
        if stored is None:
            raise NotFound(f"there is no batch '{id[:80]}' here", "id", "batch_not_found")
        self._as_shown(stored.batch)
        return stored

    def _as_shown(self, batch: answer_types.BatchObject) -> answer_types.BatchObject:
        """Returns a batch as clients see it: `cancelling` from their request on until it is cancelled."""
        if not batch.is_ended and batch.status != "finalizing":
            batch.cancelling_at = self.cancelled_at(batch.id)
            if batch.cancelling_at is not None:
                batch.status = "cancelling"
        return batch

    def cancelled_at(self, id: str) -> int | None:
        """Returns when a client asked for the end of a batch, in Unix time; None if none did."""
        with contextlib.suppress(FileNotFoundError):
            return int(self.place(id, _CANCEL).stat().st_mtime)
        return None

    def cancel(self, id: str, prefix: str = _OF_FILE) -> StoredBatch:
        """Asks whoever runs a batch to end it. Raises NotFound, and Refused for one that has ended."""
        batch = self.batch(id, prefix).batch
        if batch.is_ended or batch.status == "finalizing":
            raise Refused(f"id: the batch is {batch.status}, and can no longer be cancelled", "id", "batch_ended")
        self.place(id, _CANCEL).touch(0o600)
        return self.batch(id, prefix)

    def batches(self, query: answer_types.BatchesQuery) -> answer_types.BatchList:
        """Returns a page, the newest first. Raises Refused."""
        ids = rest_behind(self.ids(_OF_FILE), query.after, "desc")
        found = (self._as_shown(stored.batch) for id in ids if (stored := self.stored(id)) is not None)
        data, has_more = first(found, query.limit)
        return answer_types.BatchList(data, *ends([batch.id for batch in data]), has_more)

    def messages_page(self, after_id: str | None, before_id: str | None, limit: int) -> tuple[list[StoredBatch], bool]:
        """Returns the batches of messages behind or before another one, the newest first, and whether more follow.

        Raises Refused for one that there is not.
        """
        is_before = before_id is not None
        name, order = ("before_id", "asc") if is_before else ("after_id", "desc")
        ids = rest_behind(self.ids(_OF_MESSAGES), before_id if is_before else after_id, order, name)
        data, has_more = first((stored for id in ids if (stored := self.stored(id)) is not None), limit)
        for stored in data:
            self._as_shown(stored.batch)
        return data[::-1] if is_before else data, has_more

    def _batches(self) -> Iterator[StoredBatch]:
        for id in self.ids(*BATCHES):
            if (stored := self.stored(id)) is not None:
                yield stored

    # Records

    def _read(self, id: str, prefix: str | tuple[str, ...], decoder: msgspec.json.Decoder[T]) -> T | None:
        if not _ID.fullmatch(id) or not id.startswith(prefix):
            return None
        path = self.path / f"{id}{_RECORD}"
        try:
            return decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:  # records are replaced whole: somebody else, or the disk, has changed it
            _tell_damaged(path, str(error))
            return None

    def _write(self, path: Path, record: msgspec.Struct) -> None:
        """Replaces a record. The disk has it before this returns."""
        beside = path.with_suffix(f".{secrets.token_hex(4)}{_NEW}")
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Upload:
    """A file on its way. Nothing of it stays unless it is finished."""

    def __init__(self, folder: OwnerFolder, id: str, most_bytes: int) -> None:
        self._folder = folder
        self._id = id
        self._most_bytes = most_bytes
        self._path = folder.place(id, _PART)
        self._is_kept = False
        self._n_bytes = 0
        self._look_at = _LOOK_AGAIN
        self._file = open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> None:
        """Raises BodyTooLarge, and Refused where the owner's room is used up."""
        self._n_bytes += len(data)
        if self._n_bytes > self._most_bytes:
            raise BodyTooLarge(self._most_bytes)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        if self._n_bytes >= self._look_at:
            self._look_at += _LOOK_AGAIN
            self._folder.check_room()

    def finish(self, filename: str) -> answer_types.FileObject:
        """Raises Refused where the owner's room is used up."""
        self._folder.check_room()
        self._file.close()
        self._path = self._path.rename(self._folder.content_path(self._id))
        record = self._folder.publish(self._id, filename, "batch")
        self._is_kept = True
        return record

    def close(self) -> None:
        """Removes what was not finished. Twice is harmless."""
        self._file.close()
        if not self._is_kept:
            self._path.unlink(missing_ok=True)


@functools.lru_cache(maxsize=MOST_FILES)
def _tell_damaged(path: Path, words: str) -> None:
    """Logs once that a record is skipped."""
    log.error("%s is damaged, and is skipped: %s", path, words)


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _FORGET_S
    except FileNotFoundError:
        return False
