"""Runs the batches of a folder: those of all owners, in one of the processes that share it.

The process that has the folder's lock runs them; when it ends, another one takes the lock and goes on. A line is done
once its answer is in a file of results: only the others run again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from io import FileIO
from typing import Any

import gevent
from gevent.event import Event
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import NotFound, Refused, SettingsError
from corosrv.base.waits import call_in_thread
from corosrv.contracts.metrics import metric
from corosrv.dialects.openai.batches import lines
from corosrv.dialects.openai.batches.answer_types import BatchFault, BatchFaults, BatchStatus
from corosrv.dialects.openai.batches.folder import BATCHES, FileFolder, OwnerFolder, StoredBatch, is_of_messages
from corosrv.dialects.openai.batches.lines import LineCheck, LineError, LineReader, RequestLine, ResultFile
from corosrv.dialects.openai.batches.running import CallsLines, Gate, LineReply, LineRun

log = logging.getLogger("corosrv.batches")

MOST_RUNNING = 8  # batches; others wait
MOST_OF_ONE = 2  # of them, of one owner
_LOOK_S = 1.0  # between two looks for new batches, for the lock, and for what ends a batch
_ROOM_LOOKS = 10  # of those, between two looks at the owner's room
_MOST_ENDED = 100_000  # batches that are known to have ended: their records are not read again
_TRY_AGAIN_S = 10.0  # after a fault of the disk


class BatchRun:
    """Runs one batch from wherever it was left."""

    def __init__(self, folder: OwnerFolder, stored: StoredBatch, caller: CallsLines, gate: Gate, line_bytes: int):
        """`line_bytes`: of one line, at most."""
        self._folder = folder
        self._stored = stored
        self._batch = stored.batch
        self._caller = caller
        self._gate = gate
        self._line_bytes = line_bytes
        self._output: ResultFile
        self._errors: ResultFile
        self._saving: Any = None  # a greenlet
        self.n_done = {"completed": 0, "failed": 0}  # by this run

    def run(self) -> None:
        """Runs the batch to its end. Waits; raises OSError, after which another run may go on."""
        batch = self._batch
        with ExitStack() as stack:
            if batch.status == "validating":
                self._check()
            if batch.is_ended:
                return
            try:
                self._output = self._open(stack, self._stored.output)
                self._errors = self._open(stack, self._stored.errors)
            except SettingsError as error:
                return self._fail(BatchFault(lines.BROKEN, str(error)))
            if batch.status == "in_progress":
                self._finish(self._run_lines())
            elif batch.status == "finalizing":
                self._finish("completed")

    def _open(self, stack: ExitStack, id: str) -> ResultFile:
        file = call_in_thread(ResultFile, self._folder.content_path(id))
        stack.callback(file.close)
        return file

    def _reader(self, stack: ExitStack) -> LineReader:
        path = self._folder.content_path(self._batch.input_file_id)
        reader = call_in_thread(LineReader, path, self._line_bytes, self._batch.endpoint)
        stack.callback(reader.close)
        return reader

    def _check(self) -> None:
        """Checks all lines; then the batch is in progress, or has ended."""
        check = LineCheck()
        with ExitStack() as stack:
            try:
                reader = self._reader(stack)
            except FileNotFoundError:
                return self._fail(BatchFault("file_not_found", "the input file was deleted", "input_file_id"))
            while not check.is_full and call_in_thread(_check_slice, reader, check):
                if (outcome := self._why_over()) is not None:
                    return self._enter(outcome)
        check.finish()
        if check.faults:
            return self._fail(*check.faults)
        self._batch.request_counts.total = check.n_lines
        return self._enter("in_progress")

    def _fail(self, *faults: BatchFault) -> None:
        self._batch.errors = BatchFaults(list(faults))
        self._enter("failed")

    def _enter(self, status: BatchStatus) -> None:
        if status == "cancelled":
            self._batch.cancelling_at = self._folder.cancelled_at(self._batch.id)
        self._batch.enter(status, time.time())
        self._save()
        log.info("batch %s: %s", self._batch.id, status)

    def _save(self) -> None:
        """Writes the record, also where this greenlet is killed meanwhile; see close()."""
        self._saving = gevent.spawn(self._write)
        if (fault := self._saving.get()) is not None:
            raise fault

    def _write(self) -> OSError | None:
        """Returns the fault of the disk, of which gevent would print a traceback if it were raised here."""
        try:
            call_in_thread(self._folder.save, self._stored)
        except OSError as fault:
            return fault
        return None

    def close(self) -> None:
        """Waits until nothing of this run is written any more: another process may go on then."""
        if self._saving is not None:
            self._saving.join(_TRY_AGAIN_S)

    def _why_over(self) -> BatchStatus | None:
        """Returns how a batch ends that may not go on; None while it may."""
        if self._folder.cancelled_at(self._batch.id) is not None:
            return "cancelled"
        return "expired" if time.time() >= self._batch.expires_at else None

    def _run_lines(self) -> BatchStatus:
        """Runs the lines that are not done; returns how the batch ends. Waits."""
        n_looks = 0
        with ExitStack() as stack:
            try:
                reader = self._reader(stack)
            except FileNotFoundError:
                self._batch.errors = BatchFaults([BatchFault("file_not_found", "the input file is gone")])
                return "failed"
            run = LineRun(reader, self._is_done, self._caller, self._gate, self._put, self._batch.expires_at)
            stack.callback(run.close)
            if (outcome := self._why_over()) is not None:
                return outcome
            run.start()
            while not run.is_ended.wait(_LOOK_S):
                run.check()
                if (outcome := self._why_over()) is not None:
                    return outcome
                n_looks += 1
                if n_looks % _ROOM_LOOKS == 0 and (fault := call_in_thread(self._no_room)) is not None:
                    self._batch.errors = BatchFaults([fault])
                    return "failed"
                self._tell_progress()
            run.check()
        return "expired" if len(self._done_ids()) < self._batch.request_counts.total else "finalizing"

    def _no_room(self) -> BatchFault | None:
        try:
            self._folder.check_room()
        except Refused as refused:
            return BatchFault(refused.code or "storage_full", str(refused))
        return None

    def _done_ids(self) -> set[str]:
        return self._output.done | self._errors.done

    def _is_done(self, custom_id: str) -> bool:
        return custom_id in self._output.done or custom_id in self._errors.done

    def _put(self, line: RequestLine, reply: LineReply) -> None:
        is_good = lines.is_good(reply.status)
        file = self._output if is_good else self._errors
        file.add(line.custom_id, lines.result(line.custom_id, reply.response()), not is_good)
        self.n_done["completed" if is_good else "failed"] += 1

    def _count(self) -> bool:
        """Counts what is done; returns whether that is new."""
        counts = self._batch.request_counts
        before = (counts.completed, counts.failed)
        counts.completed, counts.failed = self._output.n_lines, self._errors.n_lines
        return before != (counts.completed, counts.failed)

    def _tell_progress(self) -> None:
        if self._count():
            self._save()

    def _finish(self, outcome: BatchStatus) -> None:
        """Makes files of the results, and ends the batch."""
        batch = self._batch
        if outcome == "finalizing":
            self._count()
            self._enter(outcome)
            outcome = "completed"
        elif (error := self._why_not_run(outcome)) is not None:
            self._end_lines(error)
        self._count()
        self._stored.n_not_run = self._errors.n_not_run
        for name, results in (("output", self._output), ("errors", self._errors)):
            id = getattr(self._stored, name)
            if not results.n_lines:
                self._folder.content_path(id).unlink(missing_ok=True)
            elif not is_of_messages(batch.id):
                call_in_thread(self._folder.publish, id, f"{batch.id}_{name}.jsonl", "batch_output")
                setattr(batch, f"{'error' if name == 'errors' else name}_file_id", id)
        self._enter(outcome)

    def _why_not_run(self, outcome: BatchStatus) -> LineError | None:
        """Returns what the lines that have no answer are told at the batch's end; None where they are told nothing."""
        if (known := lines.NOT_RUN.get(outcome)) is not None:
            return known
        if is_of_messages(self._batch.id) and self._batch.errors is not None:
            fault = self._batch.errors.data[0]
            return LineError(fault.code, fault.message)
        return None

    def _end_lines(self, error: LineError) -> None:
        """Writes an error for each line that has no answer. Waits."""
        with ExitStack() as stack, suppress(FileNotFoundError):
            reader = self._reader(stack)
            while slice := call_in_thread(reader.next_slice):
                for _, line in slice:
                    if not isinstance(line, Refused) and not self._is_done(line.custom_id):
                        text = lines.result(line.custom_id, None, error)
                        self._errors.add(line.custom_id, text, is_failed=True, has_run=False)


def _check_slice(reader: LineReader, check: LineCheck) -> bool:
    """Checks the next lines; returns whether there were some."""
    found = reader.next_slice()
    check.add(found)
    return bool(found)


class BatchRunner(Collector):
    """Runs the batches of a folder while this process has its lock, and counts what it does for /metrics."""

    def __init__(
        self, folder: FileFolder, find_caller: Callable[[str], CallsLines], gate: Gate, line_bytes: int
    ) -> None:
        """`find_caller`: makes what answers the lines of an owner."""
        self._folder = folder
        self._find_caller = find_caller
        self._gate = gate
        self._line_bytes = line_bytes
        self._lock: FileIO | None = None
        self._runs: dict[str, Any] = {}  # greenlets
        self._ended: set[str] = set()
        self._later: dict[str, float] = {}  # when runs go on that met a fault of the disk
        self._n_done = {"completed": 0, "failed": 0}
        self._woken = Event()
        self._loop: Any = None

    def start(self) -> None:
        """Begins to look for batches. Returns at once."""
        self._loop = gevent.spawn(self._serve)

    def wake(self) -> None:
        """Has it look for new batches now."""
        self._woken.set()

    def close(self) -> None:
        """Stops the lines that run: they run again where batches go on. Waits for them; twice is harmless."""
        if self._loop is not None:
            self._loop.kill(timeout=_TRY_AGAIN_S)
        gevent.killall(list(self._runs.values()), timeout=_TRY_AGAIN_S)
        self._runs.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _serve(self) -> None:
        while True:
            try:
                self._look()
            except OSError as fault:
                log.error("the folder of batches could not be looked at; the next look follows: %s", fault)
                gevent.sleep(_TRY_AGAIN_S)
            except Exception:
                log.exception("the folder of batches could not be looked at; the next look follows")
                gevent.sleep(_TRY_AGAIN_S)
            self._woken.wait(_LOOK_S)
            self._woken.clear()

    def _look(self) -> None:
        if self._lock is not None and os.fstat(self._lock.fileno()).st_nlink == 0:
            self._lock.close()  # the folder was removed: others may take the lock of the one that is there now
            self._lock = None
        if self._lock is None:
            self._lock = self._folder.lock()
        if self._lock is None:
            return
        if len(self._ended) > _MOST_ENDED:
            self._ended.clear()
        found = call_in_thread(self._open_batches, frozenset(self._ended), frozenset(self._runs))
        for folder, stored in found:
            id = stored.batch.id
            if stored.batch.is_ended:
                self._ended.add(id)
            elif len(self._runs) < MOST_RUNNING and time.monotonic() >= self._later.get(id, 0):
                self._runs[id] = gevent.spawn(self._run, folder, stored)

    def _open_batches(
        self, ended_ids: frozenset[str], running_ids: frozenset[str]
    ) -> list[tuple[OwnerFolder, StoredBatch]]:
        """Lists the next batches of each owner, and those found to have ended. Owners with fewest runs come first."""
        owners = [
            (folder, ids := folder.ids(*BATCHES), len(running_ids.intersection(ids)))
            for folder in self._folder.owners()
        ]
        found = []
        for folder, ids, n_running in sorted(owners, key=lambda owner: owner[2]):
            for id in ids:
                if n_running >= MOST_OF_ONE:
                    break
                if id not in ended_ids and id not in running_ids and (stored := folder.stored(id)) is not None:
                    n_running += not stored.batch.is_ended
                    found.append((folder, stored))
        return found

    def _run(self, folder: OwnerFolder, stored: StoredBatch) -> None:
        id = stored.batch.id
        run = BatchRun(folder, stored, self._find_caller(stored.owner), self._gate, self._line_bytes)
        try:
            run.run()
        except NotFound:  # its owner's folder was removed
            log.warning("batch %s is gone", id)
        except OSError as fault:
            log.error("batch %s goes on in %g s: %s", id, _TRY_AGAIN_S, fault)
            self._later[id] = time.monotonic() + _TRY_AGAIN_S
        except Exception:
            log.exception("batch %s goes on in %g s", id, _TRY_AGAIN_S)
            self._later[id] = time.monotonic() + _TRY_AGAIN_S
        finally:
            run.close()
            for outcome, n in run.n_done.items():
                self._n_done[outcome] += n
            self._runs.pop(id, None)
            self._woken.set()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("corosrv_batches_running", "Batches that run in this process", len(self._runs))
        yield GaugeMetricFamily("corosrv_batch_lines_running", "Lines of batches that run", self._gate.n_running)
        done = (([outcome], n) for outcome, n in self._n_done.items())
        yield metric(CounterMetricFamily, "corosrv_batch_lines", "Lines of batches that have ended", ["outcome"], done)
