"""Answers that were given under an Idempotency-Key, for clients that ask once more."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from corosrv.errors import Conflict, KeyReused
from corosrv.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs

LIFETIME = 24 * 3600.0  # seconds for which an answer is kept
MAX_RECORDS = 10_000  # that are kept; the oldest goes first
MAX_BYTES = 64 << 20  # of their tensors
RETRY_AFTER = 1  # seconds, told while the first call still runs

KeyOwner = tuple[str, str]  # caller and key


@dataclass(slots=True)
class CallRecord:
    """One call under a key. `end` is None while it runs."""

    digest: bytes  # of what was asked
    began: float
    card: HandlerCard | None = None
    outputs: InferOutputs | None = None
    end: InferEnd | None = None
    n_bytes: int = 0


class CallRecords:
    """Remembers calls by their keys. The time is passed in, and never goes backwards.

    A key means one call as long as its record is kept, in memory and in this process: no longer than LIFETIME, and
    less if newer ones need the room. The records of calls that run are never dropped.
    """

    def __init__(self, max_records: int = MAX_RECORDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._running: dict[KeyOwner, CallRecord] = {}
        self._ended: OrderedDict[KeyOwner, CallRecord] = OrderedDict()  # the oldest first
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def begin(self, owner: KeyOwner, digest: bytes, now: float) -> CallRecord | None:
        """Returns the record of a call that has ended, whose answer holds; None for a new one.

        `finish` or `drop` has to follow for a new one. Raises KeyReused if something else was asked under the key, and
        Conflict while the first call still runs.
        """
        while self._ended and next(iter(self._ended.values())).began + LIFETIME <= now:
            self._forget_oldest()
        record = self._running.get(owner) or self._ended.get(owner)
        if record is None:
            self._running[owner] = CallRecord(digest, now)
            return None
        if record.digest != digest:
            raise KeyReused("the Idempotency-Key was used for another request; choose a new one")
        if record.end is None:
            error = Conflict("the first request with this Idempotency-Key is still running", None, "still_running")
            error.retry_after = RETRY_AFTER
            raise error
        return record

    def finish(self, owner: KeyOwner, card: HandlerCard, outputs: InferOutputs | None, end: InferEnd) -> None:
        """Keeps the answer of a call; one that is too large is not kept, and its key is free again."""
        record = self._running.pop(owner)
        record.n_bytes = sum(tensor.n_bytes for tensor in outputs.outputs) if outputs is not None else 0
        if record.n_bytes > self._max_bytes:
            return
        record.card, record.outputs, record.end = card, outputs, end
        self._ended[owner] = record
        self._n_bytes += record.n_bytes
        while len(self._ended) > self._max_records or self._n_bytes > self._max_bytes:
            self._forget_oldest()

    def drop(self, owner: KeyOwner) -> None:
        """Frees the key of a call of which nothing has run."""
        self._running.pop(owner, None)

    def _forget_oldest(self) -> None:
        self._n_bytes -= self._ended.popitem(last=False)[1].n_bytes


def digest_of(job: InferJob) -> bytes:
    """Returns a digest of what a job asks for: not of who asks, when, or how urgently."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in _pieces(job):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.digest()


def _pieces(job: InferJob) -> Iterator[bytes | memoryview]:
    request = job.request
    yield repr((job.target, job.stream, request.id, request.outputs)).encode()
    yield repr(sorted(request.parameters.items())).encode()
    for tensor in request.inputs:
        yield repr((tensor.name, tensor.datatype, tensor.shape, sorted(tensor.parameters.items()))).encode()
        yield tensor.raw
