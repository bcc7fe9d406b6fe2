"""Forks: answers from which others may branch off, and the point at which the branches of a request do.

An answer can be forked if its request asks for that. What is kept of it are token ids: where its KV cache still lies,
in a running sequence or in the prefix cache, the engine finds it by these, and computes what it does not find.
"""

from __future__ import annotations

import codecs
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from corosrv.base.errors import NotFound, NotSupported, Refused
from corosrv.contracts.jobs import Chunk, Finish, Job, Messages, ModelCard, MultimodalText, Pieces, Tokens, Vocabulary

MAX_BRANCHES = 128
MOST_ANSWERS = 256  # of one caller
MOST_BYTES = 64 << 20  # of all callers
LIFETIME = 900.0  # seconds after the last token, and after the last fork

_MOST_CUT = 4  # tokens that may make one character: each has a byte of it
_TOKEN = "i"  # of an array: int32


class ForkFields(msgspec.Struct, forbid_unknown_fields=True):
    """The answer `of` that branches go on from, behind `at` of its tokens, or all where that is left out."""

    of: Annotated[str, Meta(max_length=128, description="The id of a forkable answer")]
    at: Annotated[int, Meta(ge=0, description="How many of its tokens the branches keep")] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_BRANCHES, description="How many branches: the choices of the answer")] = 1
    choice: Annotated[int, Meta(ge=0, description="Which choice of the answer is forked")] = 0


class ToldAnswer(msgspec.Struct, array_like=True):
    """The tokens of a forkable answer, as bytes of int32, and how it began: one worker process tells them another."""

    id: str
    model: str
    lora: tuple[tuple[int, float], ...] | None
    opening: Messages | None
    prompt: bytes
    before: bytes
    generated: list[bytes]


class ForkableAnswer:
    """The tokens of one answer, from the moment that its job is submitted. Belongs to the hub's thread.

    It holds neither the model nor its KV cache: both may go at any time.
    """

    __slots__ = ("_end_tokens", "_generated", "before", "card", "id", "lora", "opening", "prompt", "used_at")

    def __init__(
        self, card: ModelCard, prompt: Sequence[int], before: Sequence[int], job: Job, end_tokens: Sequence[int]
    ) -> None:
        """`before`: tokens behind the prompt that the answer, a branch itself, has kept of another one."""
        self.id = ""  # the answer's, once it has one
        self.card = card
        self.lora = job.lora
        self.opening: Messages | None = None  # of a chat: how its answer begins, without the messages
        self.prompt = array(_TOKEN, prompt)
        self.before = array(_TOKEN, before)
        self._generated = [array(_TOKEN) for _ in range(job.n)]
        self._end_tokens = frozenset(end_tokens)
        self.used_at = 0.0

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Takes the next chunks of its job, which tell their ids."""
        for chunk in chunks:
            generated = self._generated[chunk.index]
            generated.frombytes(chunk.ids)
            if chunk.finish is Finish.STOP and generated and generated[-1] in self._end_tokens:
                generated.pop()  # nothing follows an end
        self.used_at = time.monotonic()

    def to_told(self) -> bytes:
        """Returns what another worker process needs to fork it: the tokens that are there now."""
        tokens = self.prompt.tobytes(), self.before.tobytes(), [tokens.tobytes() for tokens in self._generated]
        return msgspec.msgpack.encode(ToldAnswer(self.id, self.card.id, self.lora, self.opening, *tokens))

    @classmethod
    def from_told(cls, data: bytes, find_card: Callable[[str], ModelCard]) -> ForkableAnswer:
        """Makes the answer that another worker process has told; waits as `find_card` does for its model."""
        told = msgspec.msgpack.decode(data, type=ToldAnswer)
        answer = cls(find_card(told.model), (), (), Job((), n=len(told.generated), lora=told.lora), ())
        answer.id, answer.opening = told.id, told.opening
        for tokens, content in ((answer.prompt, told.prompt), (answer.before, told.before)):
            tokens.frombytes(content)
        answer._generated = [array(_TOKEN, content) for content in told.generated]
        return answer

    @property
    def n_bytes(self) -> int:
        tokens = len(self.prompt) + len(self.before) + sum(map(len, self._generated))
        return tokens * self.prompt.itemsize

    def point(self, fork: ForkFields, vocabulary: Vocabulary) -> ForkPoint:
        """Returns where the branches of a fork begin. Raises Refused, which names the field."""
        if fork.choice >= len(self._generated):
            there_are = f"it has {len(self._generated)}, numbered from 0"
            raise Refused(f"fork.choice: {self.id} has no choice {fork.choice}: {there_are}", "fork.choice")
        generated = self._generated[fork.choice]
        n_kept = len(generated) if fork.at is None else fork.at
        if n_kept > len(generated):
            words = f"{self.id} has {len(generated)} tokens so far, and {n_kept} were to be kept"
            raise Refused(f"fork.at: {words}", "fork.at")
        n_before = len(self.prompt) + len(self.before)
        context = self.card.meta.get("n_ctx", 0)
        if 0 < context <= n_before + n_kept:
            # What came behind was computed without the tokens that a shift has dropped.
            words = f"the context of {self.id} was full behind {context - n_before} tokens: keep fewer"
            raise Refused(f"fork.at: {words}", "fork.at", "context_length_exceeded")
        kept = (*self.before, *generated[:n_kept])
        n_cut, n_told = _cut_character(kept, vocabulary)
        text = vocabulary.spell(kept).decode("utf-8", "ignore") if self.opening is not None else ""
        n_whole = len(kept) - n_cut
        return ForkPoint(self, (*self.prompt, *kept[:n_whole]), kept, kept[n_whole:], n_told, text, fork.n)


def _cut_character(tokens: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int]:
    """Returns how many of the last tokens have begun a character that is not whole, and their bytes before it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(vocabulary.spell(tokens[-_MOST_CUT:]))
    n_open = len(decoder.getstate()[0])
    n_tokens = n_bytes = 0
    while n_bytes < n_open:
        n_tokens += 1
        n_bytes += len(vocabulary.piece(tokens[-n_tokens]))
    return n_tokens, n_bytes - n_open


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The place in an answer where the `n` branches of one request begin.

    A character that is cut there is told whole: the last tokens that are kept, of which the first `told_bytes` bytes
    are whole characters, are `begun` and not of the `prompt`.
    """

    answer: ForkableAnswer
    prompt: tuple[int, ...]
    kept: tuple[int, ...]  # generated tokens, `begun` among them
    begun: tuple[int, ...]
    told_bytes: int
    text: str  # whole characters of all that was generated before, of a chat
    n: int

    def branch(self, job: Job) -> Job:
        """Returns the job of the branches. Raises Refused for one whose grammar begins within a character."""
        if self.begun and job.sampling.grammar and not job.sampling.grammar_triggers:
            words = "a character is cut there, with which no form can begin: keep more tokens, or fewer"
            raise Refused(f"fork.at: {words}", "fork.at")
        return replace(
            job,
            prompts=(Tokens(self.prompt),),
            n=self.n,
            model=self.answer.card.id,
            lora=self.answer.lora,
            begun=self.begun,
            told_bytes=self.told_bytes,
        )


def make_forkable(
    job: Job, card: ModelCard, vocabulary: Vocabulary, point: ForkPoint | None
) -> tuple[Job, ForkableAnswer]:
    """Returns a job that tells its tokens, and what keeps them; `point`: where its answers are branches themselves.

    May wait as `encode` does. Raises Refused, and NotSupported for images and embedding rows, which are no tokens.
    """
    if len(job.prompts) > 1:
        raise Refused("forkable: only with one prompt", "forkable")
    if not job.share_prefix:
        raise Refused("forkable and cache_prompt: false contradict each other: branches use the cache", "forkable")
    if point is not None:
        return replace(job, tells_ids=True), ForkableAnswer(
            card, point.answer.prompt, point.kept, job, vocabulary.end_tokens
        )
    (prompt,) = job.prompts
    if isinstance(prompt, (MultimodalText, Pieces)) or (isinstance(prompt, Messages) and _has_images(prompt)):
        raise NotSupported("forkable: a prompt with images or embedding rows cannot be forked", "forkable")
    ids = tuple(vocabulary.encode(prompt))
    answer = ForkableAnswer(card, ids, (), job, vocabulary.end_tokens)
    return replace(job, prompts=(Tokens(ids),), tells_ids=True), answer


def _has_images(prompt: Messages) -> bool:
    parts = (part for turn in prompt.messages if isinstance(turn["content"], tuple) for part in turn["content"])
    return any(not isinstance(part, str) for part in parts)


class ForkTable:
    """The forkable answers of all callers, each of whom has the same room, and finds their own answers alone.

    An answer is forgotten some time after its last token or fork, or for others of its caller: the one goes first that
    was kept or forked longest ago. Belongs to the hub's thread.
    """

    def __init__(
        self,
        n_callers: int = 1,
        most_answers: int = MOST_ANSWERS,
        most_bytes: int = MOST_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most_answers`: of one caller. `most_bytes`: of all, divided by the number of callers that there may be."""
        self._most_answers = most_answers
        self._most_bytes = most_bytes // max(n_callers, 1)
        self._now = now
        self._shelves: dict[str, OrderedDict[str, ForkableAnswer]] = {}  # by caller and id

    def keep(self, answer: ForkableAnswer, caller: str) -> None:
        """Takes an answer in, whose job is about to be submitted, and forgets others for it."""
        answer.used_at = self._now()
        shelf = self._shelves.setdefault(caller, OrderedDict())
        shelf[answer.id] = answer
        for id in [id for id, other in shelf.items() if self._is_over(other)]:
            del shelf[id]
        n_bytes = sum(other.n_bytes for other in shelf.values())
        while len(shelf) > 1 and (len(shelf) > self._most_answers or n_bytes > self._most_bytes):
            n_bytes -= shelf.popitem(last=False)[1].n_bytes

    def n_answers(self, caller: str) -> int:
        """Returns how many answers of a caller are kept."""
        return len(self._shelves.get(caller, ()))

    def _is_over(self, answer: ForkableAnswer) -> bool:
        return answer.used_at + LIFETIME < self._now()

    def find(self, id: str, caller: str) -> ForkableAnswer:
        """Returns an answer of this caller's. Raises NotFound."""
        answer = self._shelves.get(caller, OrderedDict()).get(id)
        if answer is None or self._is_over(answer):
            raise NotFound(
                f"fork.of: no forkable answer '{id[:80]}' is kept: an answer can be forked if its request has "
                f'"forkable": true, for {LIFETIME / 60:.0f} minutes',
                "fork.of",
                "answer_not_found",
            )
        answer.used_at = self._now()
        self._shelves[caller].move_to_end(id)
        return answer
