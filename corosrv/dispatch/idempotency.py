"""Answers that were given under an Idempotency-Key, for clients that ask once more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from corosrv.idempotency.records import KeyClaim, KeyedRecords
from corosrv.jobs.infer import HandlerCard, InferEnd, InferJob, InferOutputs


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The end of a call under a key: its outputs, or the failure of something that may have run."""

    card: HandlerCard
    outputs: InferOutputs | None
    end: InferEnd

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.outputs.outputs) if self.outputs is not None else 0


CallClaim = KeyClaim[CallAnswer]
CallRecords = KeyedRecords[CallAnswer]


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
