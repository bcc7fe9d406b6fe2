"""What all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Protocol

import msgspec

from corosrv.sampling import SAMPLERS as SAMPLERS
from corosrv.sampling import Sampling as Sampling


class Finish(str, Enum):
    """Why a task ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A token that might have come, and how likely the model found it."""

    id: int
    piece: bytes  # what it adds to the text; b"" for an end token
    logprob: float  # natural; never infinite


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token that came, and the likeliest in its place, best first: as many as the job asked for."""

    id: int
    piece: bytes
    logprob: float | None  # None: the first token of a prompt, which nothing stands before
    top: tuple[Candidate, ...] = ()


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """What a reader yields. One with `finish` is its task's terminal chunk: the last one, and the only such."""

    index: int  # which task of the job
    text: str  # whole characters; the message when finish is ERROR
    n_tokens: int  # generated since the task's previous chunk, the end token included
    finish: Finish | None = None
    # Of the task so far, in its terminal chunk and in those that tell of tokens or progress.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    # Of the whole task, in its terminal chunk.
    stopping_word: str = ""  # the stop string that ended it
    code: str = ""  # of an ERROR, a word for programs; "" is a bug or a failed decode
    slot: int = -1  # where it ran last
    is_truncated: bool = False  # the context was shifted to make room
    # Only where the job asks for it.
    tokens: tuple[TokenInfo, ...] = ()  # those that `text` is made of
    prompt_info: tuple[TokenInfo, ...] = ()  # of the prompt's tokens, in the order that they are read
    read_tokens: int = -1  # of the prompt, by now
    vector: bytes = b""  # float32, little-endian: an embedding, or a score alone; in the terminal chunk


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
    """A conversation, to be rendered by the model's chat template. Markers in the contents stay text.

    `messages` and `tools` are as OpenAI's chat API has them: roles system, user, assistant (with `tool_calls`, whose
    arguments are values, not JSON text, and `reasoning_content`) and tool; contents are strings. A template that knows
    no tools is helped: what it would drop is written into the messages, in the way that ModelCard.tool_format says.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
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
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    share_prefix: bool = True  # begin from what was computed before, and leave behind what is computed now
    model: str | None = None  # the capability wanted; None takes what there is
    scores_prompt: bool = False  # the first chunks carry `prompt_info`
    tells_progress: bool = False  # chunks with `read_tokens` come before the prompt is read, and after each piece
    context_shift: bool = False  # a full context drops tokens behind the first n_keep, and goes on
    n_keep: int = 0  # -1 is all of the prompt
    n_discard: int = 0  # 0 is half of what may go
    max_ms: float = 0.0  # of generating, from the first token on; then LENGTH. 0: no limit
    slot: int = -1  # where it has to run; -1: anywhere
    caller: str = ""  # who asks; what is computed for one caller is not shared with another
    lora: tuple[tuple[int, float], ...] | None = None  # adapter number and scale; None: as the server is set

    @property
    def n_tasks(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """Turns each prompt into a vector: one task, and one terminal chunk with `vector`, for each."""

    prompts: tuple[Prompt, ...]
    normalize: int = 2  # -1: as it is; 0: largest number is 32760; 2: Euclidean; p: p-norm
    pooling: bool = True  # False: a vector for every token, one behind the other
    model: str | None = None

    @property
    def n_tasks(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True)
class RerankJob:
    """Scores each document for the query: one task, and one terminal chunk with a `vector` of one number, for each."""

    query: str
    documents: tuple[str, ...]
    model: str | None = None

    @property
    def n_tasks(self) -> int:
        return len(self.documents)


AnyJob = Job | EmbedJob | RerankJob


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
    aliases: tuple[str, ...] = ()  # chosen by the operator, the id among them; none where it is the file's
    tags: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""  # changes when the same seed may give another text
    capabilities: frozenset[str] = frozenset()  # of completion, chat, tools, infill, embeddings, rerank
    tool_format: str = ""  # how this model writes a tool call: hermes, llama3, mistral
    reasoning_tags: tuple[str, str] | None = None  # what stands around its thoughts
    opens_reasoning: bool = False  # a prompt ends inside the thoughts, unless it is told not to think
    reasons: bool = True  # whether it thinks where a conversation does not say
    splits_reasoning: bool = True  # thoughts are told apart from the text
    status: str = "loaded"  # or loading, unloaded, failed: then the card has only what is known without loading it
    file: str = ""  # that it was loaded from, without its folders
    slots: int = 0  # sequences decoded at once


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens that tell a model where a text has its hole. Those of a repository are -1 where there are none."""

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    file: int = -1


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that was loaded with a model, and how much of it jobs get that do not say."""

    id: int
    name: str  # of its file, without folders
    scale: float


@dataclass(frozen=True, slots=True)
class SlotState:
    """What a slot does, or did last, as of the last step; nobody's text is in it."""

    id: int
    is_busy: bool
    task: int = -1  # counted from 0 over all jobs; -1: the slot was never used, and what follows says nothing
    prompt_tokens: int = 0
    computed_tokens: int = 0  # of the prompt
    cached_tokens: int = 0  # of the prompt, that did not have to be computed
    generated_tokens: int = 0
    max_tokens: int | None = None
    has_new_line: bool = False
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What was written to a file of a slot's state, or read from it."""

    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PredictJob:
    """One call of a predictor. Its reader gives messages of corosrv.wire.messages, Done, Failed or Cancelled last."""

    id: str
    input: Mapping[str, Any]  # validated, with its defaults
    output_dir: str  # for its files; made by whoever has some, removed by whoever submits
    context: Mapping[str, str] = field(default_factory=dict)


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


class Vocabulary(Protocol):
    """Texts, tokens and templates of one model. Long texts wait while they are read."""

    size: int
    bos: str  # the token that begins a text, spelled out; "" where the model has none
    eos: str
    end_tokens: tuple[int, ...]  # those that end an answer
    chat_template: str  # "" where there is none
    infill: InfillTokens | None

    @property
    def template_abilities(self) -> frozenset[str]:
        """What the chat template writes by itself: system, tools, calls, results, reasoning."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        """Raises PromptTooLong, which names `param`, for a text that no context could hold."""

    def piece(self, token: int) -> bytes:
        """What a token prints, control tokens spelled out. Raises Refused for an id that the model does not have."""

    def spell(self, tokens: Iterable[int]) -> bytes:
        """What tokens print, one after the other. Raises as `piece` does; gives way to others where they are many."""

    def render(self, prompt: Messages) -> str:
        """What the model's chat template makes of a conversation."""

    def count(self, prompt: Prompt) -> int:
        """Tokens of a prompt, as `usage.prompt_tokens` would have them. Raises Refused as `submit` does."""

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """The tokens that a job of this prompt begins with. Raises Refused as `submit` does.

        `number` of `n_prompts`: which one it is, for the error.
        """


class Worker(Protocol):
    """Anything that can run jobs."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""

    def models(self) -> tuple[ModelCard, ...]:
        """All that there are, loaded or not. Never waits."""

    def card(self, model: str | None) -> ModelCard:
        """The model that a job of this name would get. May wait while it is loaded.

        Raises ModelNotFound or Unavailable.
        """

    def vocabulary(self, model: str | None) -> Vocabulary:
        """How that model writes. May wait while it is loaded; raises as `card` does."""

    def submit(self, job: AnyJob) -> Reader:
        """Checks and queues a job; may wait while a long prompt is read. Raises Refused or Unavailable."""


class HasSlots(Protocol):
    """A worker whose lanes can be looked at, and their computed prompts be kept in files."""

    def slots(self, model: str | None) -> tuple[SlotState, ...]:
        """Every slot, by its number. Never waits for a step."""

    # These three wait until the slot is idle, and raise SlotBusy when that takes long, Refused for a slot that there is
    # not. `caller` is a job's: what others' jobs left, and their files, are not found.

    def save_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Writes what the slot's last job left. Raises Refused where that is nothing, or is kept no longer."""

    def restore_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Reads it back: prompts that begin like it need not compute it again. Raises NotFound, and Refused for a file
        that is broken or none of this model's."""

    def erase_slot(self, model: str | None, slot: int, caller: str = "") -> int:
        """Forgets what the slot's last job left; returns how many tokens that was."""


class HasAdapters(Protocol):
    """A worker whose models may have LoRA adapters."""

    def adapters(self, model: str | None) -> tuple[Adapter, ...]: ...

    def set_adapters(self, model: str | None, scales: Mapping[int, float]) -> None:
        """From now on jobs that do not say get these, and nothing of the others. Raises Refused for an unknown id."""
