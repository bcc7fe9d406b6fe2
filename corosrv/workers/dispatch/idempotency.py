"""Gives the answer of a call with an Idempotency-Key to clients that ask once more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from corosrv.base.errors import CorosrvError
from corosrv.contracts.idempotency import KeyClaim, KeyedRecords
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs

_NO_LOCK = nullcontext()


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The end of a call under a key, and the outputs before it; also the failure of something that may have run."""

    card: HandlerCard
    outputs: tuple[InferOutputs, ...]
    end: InferEnd


CallClaim = KeyClaim[CallAnswer]
CallRecords = KeyedRecords[CallAnswer]


class AnswerKeeper:
    """Gathers the outputs of one call that has a key, and keeps them when it has ended."""

    __slots__ = ("_card", "_claim", "_lock", "_outputs")

    def __init__(self, claim: CallClaim, card: HandlerCard, lock: AbstractContextManager[object] = _NO_LOCK) -> None:
        """`lock`: held while the claim is used, where several threads make calls."""
        self._claim = claim
        self._card = card
        self._lock = lock
        self._outputs: list[InferOutputs] | None = []  # None: they are too large to be kept

    def add(self, outputs: InferOutputs) -> None:
        """Adds what the call's reader gets as well."""
        if self._outputs is None:
            return
        with self._lock:
            has_room = self._claim.grow(sum(tensor.n_bytes for tensor in outputs.outputs))
        if has_room:
            self._outputs.append(outputs)
        else:
            self._outputs = None

    def end(self, error: CorosrvError | None, now: float, *, has_run: bool) -> None:
        """Keeps the outputs, and how the call ended; frees its key if nothing of it has run, or they are too large."""
        end = InferEnd(None if error is None else error.fresh())
        with self._lock:
            if has_run and self._outputs is not None:
                self._claim.finish(CallAnswer(self._card, tuple(self._outputs), end), now)
            else:
                self._claim.drop()


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
