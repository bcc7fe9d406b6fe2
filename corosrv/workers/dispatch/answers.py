"""Makes what a client gets from what its handler sends: the outputs that it wants, once or as they come.

The outputs of a call with an Idempotency-Key are kept as well (`AnswerKeeper`), for clients that ask once more. Callers
read them from a `HandlerReader`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from corosrv.base.errors import CorosrvError, HandlerFailed, NotOffered, Refused
from corosrv.contracts.idempotency import KeyClaim, KeyedRecords
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.contracts.jobs.infer import (
    HandlerCard,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferRequest,
)
from corosrv.formats.tensors import Tensor

TEXT = "text_output"  # the output whose pieces are joined
MAX_JOINED = 64 << 20  # bytes


def check_answerable(card: HandlerCard, request: InferRequest, is_stream: bool) -> None:
    """Raises NotOffered for a unary call of a handler that only streams, and Refused for outputs that do not exist."""
    if card.is_stream and not is_stream and card.unary not in ("join", "last"):
        raise NotOffered(f"the model '{card.name}' only streams; call it with ModelStreamInfer or generate_stream")
    if request.outputs is None:
        return
    if len(set(request.outputs)) < len(request.outputs):
        raise Refused("outputs: one is named twice", "outputs")
    if card.outputs:
        declared = {spec.name for spec in card.outputs}
        for name in request.outputs:
            if name not in declared:
                raise _unknown(card, name)


def _unknown(card: HandlerCard, name: str) -> Refused:
    return Refused(f"outputs: the model '{card.name}' has no output '{name[:120]}'", "outputs", "unknown_output")


def choose(card: HandlerCard, outputs: InferOutputs, names: Sequence[str] | None, is_stream: bool) -> InferOutputs:
    """Returns the outputs of these names in their order; all without names. A streamed answer may lack some.

    Raises HandlerFailed for an output that was declared and that this answer lacks, whether it was named or, unless it
    is optional, all were wanted; Refused for any other name that it lacks.
    """
    by_name = {tensor.name: tensor for tensor in outputs.outputs}
    if not is_stream:
        for name in _required(card) if names is None else names:
            if name not in by_name:
                raise _missing(card, name) if card.outputs else _unknown(card, name)
    if names is None:
        return outputs
    return dataclasses.replace(outputs, outputs=tuple(by_name[name] for name in names if name in by_name))


def _required(card: HandlerCard) -> list[str]:
    """Returns the outputs that a whole answer must have. The last piece of a stream may lack what came before it."""
    return [] if card.is_stream else [spec.name for spec in card.outputs if not spec.optional]


def _missing(card: HandlerCard, name: str) -> HandlerFailed:
    return HandlerFailed(f"the handler of '{card.name}' gave no output '{name}', which it declares")


class UnaryAnswer:
    """Makes one answer of all that a handler sends for a unary call."""

    __slots__ = ("_card", "_last", "_n_bytes", "_pieces")

    def __init__(self, card: HandlerCard) -> None:
        self._card = card
        self._last: InferOutputs | None = None
        self._pieces: list[bytes] | None = [] if card.is_stream and card.unary == "join" else None
        self._n_bytes = 0

    def add(self, outputs: InferOutputs) -> CorosrvError | None:
        """Adds an answer; returns why the call cannot go on, or None."""
        self._last = outputs
        if self._pieces is not None:
            for tensor in outputs.outputs:
                if tensor.name == TEXT and tensor.datatype == "BYTES":
                    self._pieces += tensor.data
                    self._n_bytes += tensor.n_bytes
            if self._n_bytes > MAX_JOINED:
                return HandlerFailed(f"the joined answer exceeds {MAX_JOINED} bytes")
        return None

    def result(self, names: Sequence[str] | None) -> InferOutputs:
        """Returns the answer. Raises HandlerFailed if nothing was sent, and what `choose` raises."""
        outputs = self._last or InferOutputs(())
        if self._pieces is not None:
            text = Tensor(TEXT, "BYTES", [1], [b"".join(self._pieces)])
            kept = tuple(tensor for tensor in outputs.outputs if tensor.name != TEXT)
            outputs = dataclasses.replace(outputs, outputs=(text, *kept))
        elif self._last is None:
            raise HandlerFailed("the handler ended without an answer")
        chosen = choose(self._card, outputs, names, False)
        return InferOutputs(chosen.outputs, chosen.parameters, is_final=True)


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


class HandlerReader(BufferedReader[InferItem], InferReader):
    """Yields a call's answers; the InferEnd comes once and is the last, whatever happens.

    A cancel ends the call at once with CallCancelled; a worker that has it is told.
    """

    def __init__(self, card: HandlerCard, cancel: Callable[[], None], is_replayed: bool = False) -> None:
        """`cancel`: ends the call, by calling `end`, unless it has ended."""
        super().__init__(cancel)
        self._card = card
        self._is_replayed = is_replayed

    @classmethod
    def of_answer(cls, answer: CallAnswer) -> HandlerReader:
        """Makes the reader of a call that need not run: its answer is known."""
        reader = cls(answer.card, lambda: None, is_replayed=True)
        for outputs in answer.outputs:
            reader.add(outputs, 0)
        reader.end(None if answer.end.error is None else answer.end.error.fresh())
        return reader

    @property
    def card(self) -> HandlerCard:
        return self._card

    @property
    def is_replayed(self) -> bool:
        return self._is_replayed

    def add(self, outputs: InferOutputs, n_bytes: int) -> None:
        """Adds an answer; none may follow the end. Never waits."""
        self.add_item(outputs, n_bytes)

    def end(self, error: CorosrvError | None) -> None:
        """Adds the end, once. Never waits."""
        self.add_last(InferEnd(error))
