"""The contract of everything that takes jobs, and of what a worker may offer besides.

A worker describes its models by cards. One that generates text has a vocabulary, and may have LoRA adapters, slots that
can be looked at and saved, and counters of its decode loop. Counters are plain values; collectors give them Prometheus'
form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from corosrv.base.errors import Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs.job import AnyJob, Defaults, Messages, Prompt, Sampling
from corosrv.contracts.jobs.reader import Chunk, Reader
from corosrv.formats.callformats.description import BARE, HERMES, AnswerFormat, CallFormat


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model that a worker offers, as `/v1/models` lists it."""

    id: str
    created: int  # Unix time of the load
    aliases: tuple[str, ...] = ()  # chosen by the operator, the id among them; none where it is the file's
    tags: tuple[str, ...] = ()
    parent: str = ""  # of a LoRA adapter: the id of the model that it was loaded with
    meta: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""  # changes when the same seed may give another text
    capabilities: frozenset[str] = frozenset()  # of completion, chat, tools, infill, embeddings, rerank
    call_format: CallFormat = HERMES  # how this model writes calls of tools
    answer_format: AnswerFormat = BARE  # what it writes around thoughts and text
    reasons: bool = True  # whether it thinks where a conversation does not say
    splits_reasoning: bool = True  # thoughts are told apart from the text
    repeats_reasoning: bool = False  # and are in the text of chat completions as well, with their tags
    thought_tokens: int | None = None  # that thoughts may have where a conversation does not say; None: any number
    thought_message: str = ""  # the last words of thoughts that have spent them, likewise
    status: str = (
        "loaded"  # or downloading, loading, unloaded, failed: then the card has only what is known without loading it
    )
    progress: dict[str, int] = field(default_factory=dict)  # of a download: bytes, total
    file: str = ""  # that it was loaded from, without its folders
    bos: str = ""  # the token that begins a text, spelled out; "" where the model has none
    eos: str = ""
    chat_template: str = ""  # "" where there is none
    template_abilities: frozenset[str] = frozenset()  # of the template itself: system, tools, calls, results, reasoning
    slots: int = 0  # sequences decoded at once; 0 until the model is loaded for the first time
    row_width: int = 0  # numbers of an embedding row (Rows.width); 0: prompts hold none
    max_rows: int = 0  # of one prompt
    defaults: Defaults = field(default_factory=Defaults)  # for what a request does not say
    # The most that a grammar may have; see the settings of the same names.
    grammar_bytes: int = 65_536
    grammar_rules: int = 2_000
    grammar_repetitions: int = 2_000

    @property
    def reasoning_tags(self) -> tuple[str, str] | None:
        """Returns what stands around the model's thoughts."""
        return self.answer_format.thought_tags

    @property
    def opens_reasoning(self) -> bool:
        """Returns whether a prompt ends inside the thoughts, unless it is told not to think."""
        return self.answer_format.opens_thoughts


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


class HasAdapters(Protocol):
    """A worker whose models may have LoRA adapters."""

    def adapters(self, model: str | None) -> tuple[Adapter, ...]:
        """Lists them; loads no model for that."""

    def set_adapters(self, model: str | None, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; those not listed are off. Raises Refused for unknown ids."""


class Vocabulary(Protocol):
    """Texts, tokens and templates of one model. Long texts wait while they are read."""

    size: int
    end_tokens: tuple[int, ...]  # those that end an answer
    infill: InfillTokens | None

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        """Raises PromptTooLong, which names `param`, for a text that no context could hold."""

    def piece(self, token: int) -> bytes:
        """Returns what a token prints, control tokens spelled out. Raises Refused for an unknown id."""

    def is_hidden(self, token: int) -> bool:
        """Tells whether a token adds nothing to the text of an answer, as most control tokens do."""

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Returns the text of tokens in a row. Raises as `piece` does; lets others run where they are many."""

    def render(self, prompt: Messages) -> str:
        """Renders a conversation by the model's chat template."""

    def count(self, prompt: Prompt) -> int:
        """Tokens of a prompt, as `usage.prompt_tokens` would have them. Raises Refused as `submit` does."""

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """Returns the tokens that a job of this prompt begins with. Raises Refused as `submit` does.

        `number` of `n_prompts`: which one it is, for the error.
        """


MAX_BIASED_CHARS = 256
MAX_TOKEN_BIASES = 2048  # each of them is looked at for each token of each answer


def token_biases(biases: Iterable[tuple[int | str, float]], vocabulary: Vocabulary) -> list[tuple[int, float]]:
    """Turns the texts among biases into their tokens; lets others run where they are many.

    Raises Refused for ids that the model does not have, long texts, and too many tokens.
    """
    found: list[tuple[int, float]] = []
    for key, bias in Turns().among(biases):
        if isinstance(key, str) and len(key) > MAX_BIASED_CHARS:
            raise Refused(f"logit_bias: a text has at most {MAX_BIASED_CHARS} characters", "logit_bias")
        tokens = [key] if isinstance(key, int) else vocabulary.tokenize(key, False, False, "logit_bias")
        found += [(token, bias) for token in tokens]
        if any(not 0 <= token < vocabulary.size for token in tokens):
            last = vocabulary.size - 1
            raise Refused(f"logit_bias: {key} is no token id of this model (0 to {last})", "logit_bias")
        if len(found) > MAX_TOKEN_BIASES:
            raise Refused(f"logit_bias: its texts have more than {MAX_TOKEN_BIASES} tokens", "logit_bias")
    return found


class SlotState(msgspec.Struct, frozen=True):
    """State of a slot as of the last step: what it does, or did last. It holds no text of a request."""

    id: int
    is_busy: bool
    task: int = -1  # counted from 0 over all jobs; -1: the slot was never used, and what follows says nothing
    prompt_tokens: int = 0
    computed_tokens: int = 0  # of the prompt
    cached_tokens: int = 0  # of the prompt, that did not have to be computed
    generated_tokens: int = 0
    max_tokens: int | None = None
    has_new_line: bool = False
    sampling: Sampling | None = None  # without its texts and biases; None where it is not known any more
    stream: bool = False
    caller: str = ""  # whose task it is


@dataclass(frozen=True, slots=True)
class SlotFile:
    """Counts of what was written to a slot's file, or read from it."""

    n_tokens: int
    n_bytes: int


class HasSlots(Protocol):
    """A worker whose slots can be listed, and their computed prompts saved in files."""

    def slots(self, model: str | None) -> tuple[SlotState, ...]:
        """Lists every slot, by its number; none of a model that is not loaded. Never waits for a step."""

    # These three wait until the slot is idle, and raise SlotBusy when that takes long, Refused for a slot that there is
    # not. `caller` is a job's: what others' jobs left, and their files, are not found.

    def save_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Writes what the slot's last job left. Raises Refused where that is nothing, or is kept no longer."""

    def restore_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        """Reads it back: prompts that begin like it need not compute it again. Raises NotFound, and Refused for a file
        that is broken or none of this model's."""

    def erase_slot(self, model: str | None, slot: int, caller: str = "") -> int:
        """Forgets what the slot's last job left; returns how many tokens that was."""


class State(str, Enum):
    """States of a worker."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"


class Worker(Protocol):
    """Anything that can run jobs."""

    @property
    def state(self) -> State: ...

    def check(self) -> None:
        """Raises the Unavailable that a job would meet now."""

    def models(self) -> tuple[ModelCard, ...]:
        """Returns every configured model, loaded or not. Never waits."""

    def card(self, model: str | None) -> ModelCard:
        """Returns the model that a job of this name would get. May wait while it is loaded.

        Raises ModelNotFound or Unavailable.
        """

    def vocabulary(self, model: str | None) -> Vocabulary:
        """Returns that model's vocabulary. May wait while it is loaded; raises as `card` does."""

    def submit(self, job: AnyJob) -> Reader[Chunk]:
        """Checks and queues a job; may wait while a long prompt is read. Raises Refused or Unavailable."""


BOUNDS = tuple(0.001 * 2**i for i in range(15))  # of all buckets of a histogram but the last


class Histogram(msgspec.Struct, frozen=True):
    """Observations in seconds; bucket i counts those of at most BOUNDS[i], the last one all others."""

    buckets: tuple[int, ...]
    sum: float


class DecodeStats(msgspec.Struct, frozen=True):
    """Counters of the decode loop as of its last step; see corosrv_stats in the C header."""

    tasks_stop: int
    tasks_length: int
    tasks_cancelled: int
    tasks_error: int
    tasks_refused: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    drafts: int
    draft_tokens: int
    draft_accepted_tokens: int
    draft_model_tokens: int
    draft_model_accepted_tokens: int
    steps: int
    eventfd_writes: int
    readers_polled: int
    preempted: int
    later_tokens: int
    slot_steps: int
    longest_task: int
    step_s: float
    prompt_s: float
    decode_s: float
    threads: int
    slots: int
    running: int
    waiting: int
    paused: int
    readers: int
    cache_entries: int
    cache_bytes: int
    queue_wait: Histogram
    ttft: Histogram
    itl: Histogram


class HasDecodeStats(Protocol):
    """Anything that has a decode loop."""

    def stats(self) -> DecodeStats | None:
        """Counters as of the last step; None while there is no loop."""


class HasModelStats(Protocol):
    """Anything that has a decode loop for each of several models."""

    def model_stats(self) -> Mapping[str, DecodeStats]:
        """Counters by the model's id, of those that are loaded."""

    def model_states(self) -> Mapping[str, str]:
        """Returns the state of each model, by its id."""
