"""Describes models: their names, their abilities, their adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from corosrv.formats.callformats.description import BARE, AnswerFormat, CallFormat
from corosrv.formats.callformats.known import HERMES


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
    call_format: CallFormat = HERMES  # how this model writes calls of tools
    answer_format: AnswerFormat = BARE  # what it writes around thoughts and text
    reasons: bool = True  # whether it thinks where a conversation does not say
    splits_reasoning: bool = True  # thoughts are told apart from the text
    thought_tokens: int | None = None  # that thoughts may have where a conversation does not say; None: any number
    thought_message: str = ""  # the last words of thoughts that have spent them, likewise
    status: str = (
        "loaded"  # or downloading, loading, unloaded, failed: then the card has only what is known without loading it
    )
    progress: dict[str, int] = field(default_factory=dict)  # of a download: bytes, total
    file: str = ""  # that it was loaded from, without its folders
    slots: int = 0  # sequences decoded at once
    row_width: int = 0  # numbers of an embedding row (Rows.width); 0: prompts hold none
    max_rows: int = 0  # of one prompt
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

    def adapters(self, model: str | None) -> tuple[Adapter, ...]: ...

    def set_adapters(self, model: str | None, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; those not listed are off. Raises Refused for unknown ids."""
