"""What all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Protocol

import msgspec


class Finish(str, Enum):
    """Why a task ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """What a reader yields. One with `finish` is its task's terminal chunk: the last one, and the only such."""

    index: int  # which task of the job
    text: str  # whole characters; the message when finish is ERROR
    n_tokens: int  # generated since the task's previous chunk, the end token included
    finish: Finish | None = None
    # Of the whole task, in its terminal chunk.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Applied in order: bias, penalties, top_k, grammar, typical_p, top_p, min_p, temperature.

    A grammar that allows none of the top_k tokens goes before them, and they are the best of what it allows.
    """

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 keeps all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens that the penalties look back on; -1 is the context
    seed: int | None = None  # None is random
    ignore_eos: bool = False
    # Token id, or a text for all its tokens; and what is added to the logit: -inf bans it.
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    grammar: str = ""  # GBNF that the text follows; empty: any text


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as it stands; control markers in it are control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt as token ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """A conversation, to be rendered by the model's chat template. Markers in the contents stay text."""

    messages: tuple[dict[str, Any], ...]
    add_generation_prompt: bool = True
    continue_final: bool = False  # the last message is the beginning of the answer
    template_arguments: dict[str, Any] = field(default_factory=dict)


Prompt = Text | Tokens | Messages


@dataclass(frozen=True, slots=True)
class Job:
    """What an adapter submits: `n` answers to each prompt. Task number = prompt number * n + answer number."""

    prompts: tuple[Prompt, ...]
    n: int = 1
    max_tokens: int | None = None  # None: until the context is full
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    share_prefix: bool = True  # begin from what was computed before, and leave behind what is computed now
    model: str | None = None  # the capability wanted; None takes what there is

    @property
    def n_tasks(self) -> int:
        return len(self.prompts) * self.n


class State(str, Enum):
    """Where a worker stands."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model that a worker offers, as `/v1/models` lists it."""

    id: str
    created: int  # Unix time of the load
    aliases: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""  # changes when the same seed may give another text


# Takes over chunks; says whether it wants more.
Sink = Callable[[list[Chunk]], bool]


class Reader(Protocol):
    """The receiving end of one job's results.

    Iterating yields chunks until every task has had its terminal chunk. Leaving the `with` block cancels what is
    unfinished. Belongs to the thread that made it; only `cancel` may be called from others.
    """

    prompt_tokens: tuple[int, ...]  # of each prompt

    @property
    def is_finished(self) -> bool:
        """Every task has had its terminal chunk, and it was taken."""

    def take(self, timeout: float | None = None) -> list[Chunk]:
        """All unread chunks, at least one; an empty list once every task has ended. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """

    def pump(self, sink: Sink, timeout: float | None = None) -> None:
        """Hands all unread chunks to `sink` each time there are some, until it returns False or every task has ended.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without chunks.
        """

    def cancel(self) -> None:
        """Ends what is unfinished; its terminal chunks say CANCELLED."""

    def close(self) -> None:
        """Cancels, and gives back the reader's descriptor. Twice is harmless."""

    def __iter__(self) -> Iterator[Chunk]: ...

    def __enter__(self) -> Reader: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Worker(Protocol):
    """Anything that can run jobs."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""

    def models(self) -> tuple[ModelCard, ...]: ...

    def submit(self, job: Job) -> Reader:
        """Checks and queues a job; may wait while a long prompt is read. Raises Refused or Unavailable."""
