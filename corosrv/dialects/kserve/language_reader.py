"""Reads the chunks of a generating job as the answers of an inference call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from corosrv.base.errors import CallCancelled, CorosrvError, DeadlinePassed
from corosrv.contracts.jobs import Chunk, Finish, Reader, Sink
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferItem, InferJob, InferOutputs, InferReader
from corosrv.contracts.jobs.reader import take_first
from corosrv.dialects.generation.exchange import failure_of
from corosrv.dialects.generation.job_usage import JobRecord
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.dispatch.answers import AnswerKeeper, UnaryAnswer, choose

OUTPUTS = [
    TensorSpec("text_output", "BYTES", (1,)),
    TensorSpec("finish_reason", "BYTES", (1,)),
    TensorSpec("num_input_tokens", "INT32", (1,)),
    TensorSpec("num_output_tokens", "INT32", (1,)),
]
_TEXT, _FINISH, _N_INPUT, _N_OUTPUT = (spec.name for spec in OUTPUTS)
_RUNNING = Tensor(_FINISH, "BYTES", [1], [b""])


class LanguageReader(InferReader):
    """Yields an answer for each piece of text, or the one that a unary call wants; the InferEnd is the last, and once.

    The job is submitted by the first take or pump, which may wait while its model is loaded. Belongs to the thread that
    reads; `cancel` may be called from others.
    """

    __slots__ = (
        "_answer",
        "_call",
        "_card",
        "_chunks",
        "_is_cancelled",
        "_is_finished",
        "_keeper",
        "_record",
        "_submit",
    )

    def __init__(
        self,
        call: InferJob,
        card: HandlerCard,
        prefix: str,
        submit: Callable[[], tuple[Reader[Chunk], JobRecord]],
        keeper: AnswerKeeper | None = None,
    ) -> None:
        """`prefix`: what the text begins with. `submit`: queues the job; waits, and raises what its worker does.

        `keeper`: gathers the answers of a call with an idempotency key, which hold if it ends well; a text that
        failed may be made again.
        """
        self._call = call
        self._card = card
        self._answer = _LanguageAnswer(call, card, prefix)
        self._submit = submit
        self._keeper = keeper
        self._chunks: Reader[Chunk] | None = None
        self._record: JobRecord | None = None
        self._is_cancelled = False
        self._is_finished = False

    @property
    def card(self) -> HandlerCard:
        return self._card

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    def take(self, timeout: float | None = None) -> list[InferItem]:
        """Returns all unread items, at least one; an empty list after the last and after close(). Waits.

        Raises ReadTimeout after `timeout` seconds without chunks; the reader can be used on.
        """
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        """Hands all unread items to `sink` until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without chunks.
        """
        if self._is_finished:
            return
        if self._chunks is None:
            self._begin(sink)
        if self._chunks is not None and not self._is_finished:
            self._chunks.pump(lambda chunks: self._pass_on(chunks, sink), timeout)

    def _begin(self, sink: Sink[InferItem]) -> None:
        """Submits the job, or says why that was not possible."""
        try:
            if self._is_cancelled:
                raise _cancelled()
            self._chunks, self._record = self._submit()
        except CorosrvError as error:
            if not self._is_finished:
                self._is_finished = True
                self._keep([InferEnd(error)])
                sink([InferEnd(error)])
            return
        if self._is_finished:  # closed meanwhile
            self.close()
        elif self._is_cancelled:
            self._chunks.cancel()

    def _pass_on(self, chunks: list[Chunk], sink: Sink[InferItem]) -> bool:
        if self._record is not None:
            self._record.add(chunks)
        items = list(self._answer.items(chunks))
        if not items:
            return True
        self._is_finished = isinstance(items[-1], InferEnd)
        self._keep(items)
        return sink(items) and not self._is_finished

    def _keep(self, items: list[InferItem]) -> None:
        """Keeps the answers of a call that has a key, and its end, once."""
        if (keeper := self._keeper) is None:
            return
        for item in items:
            if isinstance(item, InferOutputs):
                keeper.add(item)
            else:
                self._keeper = None
                keeper.end(item.error, monotonic(), has_run=item.error is None)

    def cancel(self) -> None:
        self._is_cancelled = True
        if (chunks := self._chunks) is not None:
            chunks.cancel()

    def close(self) -> None:
        self.cancel()
        self._is_finished = True
        self._keep([InferEnd(_cancelled())])
        if self._chunks is not None:
            self._chunks.close()
        if self._record is not None:
            self._record.end()


class _LanguageAnswer:
    """Makes the items of a call from its job's chunks."""

    __slots__ = ("_call", "_card", "_n_input", "_n_output", "_prefix", "_unary")

    def __init__(self, call: InferJob, card: HandlerCard, prefix: str) -> None:
        self._call = call
        self._card = card
        self._prefix = prefix
        self._n_input = self._n_output = 0
        self._unary = None if call.stream else UnaryAnswer(card)

    def items(self, chunks: Iterable[Chunk]) -> Iterator[InferItem]:
        for chunk in chunks:
            if chunk.finish is not None and (error := self._failure(chunk)) is not None:
                yield InferEnd(error)
                return
            try:
                outputs = self._outputs(chunk)
            except CorosrvError as error:
                yield InferEnd(error)
                return
            if outputs is not None:
                yield outputs
            if chunk.finish is not None:
                yield InferEnd()

    def _outputs(self, chunk: Chunk) -> InferOutputs | None:
        """Returns what a client gets with this chunk, if it gets something."""
        self._n_input = max(self._n_input, chunk.prompt_tokens)
        self._n_output += chunk.n_tokens
        if not chunk.text and chunk.finish is None:
            return None
        outputs = InferOutputs(self._tensors(chunk), is_final=chunk.finish is not None)
        names = self._call.request.outputs
        if self._unary is None:
            return choose(self._card, outputs, names, True)
        if (error := self._unary.add(outputs)) is not None:
            raise error
        return self._unary.result(names) if chunk.finish is not None else None

    def _tensors(self, chunk: Chunk) -> tuple[Tensor, ...]:
        text, self._prefix = self._prefix + chunk.text, ""
        finish = _RUNNING if chunk.finish is None else Tensor(_FINISH, "BYTES", [1], [chunk.finish.value.encode()])
        return (
            Tensor(_TEXT, "BYTES", [1], [text.encode()]),
            finish,
            Tensor(_N_INPUT, "INT32", [1], [self._n_input]),
            Tensor(_N_OUTPUT, "INT32", [1], [self._n_output]),
        )

    def _failure(self, chunk: Chunk) -> CorosrvError | None:
        """Returns why the task failed; a deadline has the same error in the queue and later, as the v2 protocol has."""
        if chunk.finish is Finish.CANCELLED:
            return _cancelled()
        error = failure_of(chunk)
        deadline = self._call.terms.deadline
        if chunk.code == "queue_timeout" and deadline is not None and monotonic() >= deadline:
            return DeadlinePassed(chunk.text)
        return error


def _cancelled() -> CallCancelled:
    return CallCancelled("the call was cancelled")
