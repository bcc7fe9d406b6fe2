"""Types of the answers of llama-server's endpoints, for the API document. Tests hold real answers against them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from corosrv.openai.answer_types import PromptProgress, Timings


class NativeCompletion(msgspec.Struct):
    """A prompt continued. An event of a stream has less of it, until the last, where `stop` is true.

    With `response_fields` only the members that it names are there.
    """

    index: int | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    stop: bool | msgspec.UnsetType = msgspec.UNSET
    id_slot: int | msgspec.UnsetType = msgspec.UNSET
    tokens_predicted: int | msgspec.UnsetType = msgspec.UNSET
    tokens_evaluated: int | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    generation_settings: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    has_new_line: bool | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    stop_type: Literal["none", "eos", "limit", "word"] | msgspec.UnsetType = msgspec.UNSET
    stopping_word: str | msgspec.UnsetType = msgspec.UNSET
    tokens_cached: int | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    completion_probabilities: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class TokenPiece(msgspec.Struct):
    """A token, and what it prints: text, or bytes that are none by themselves."""

    id: int
    piece: str | list[int]


class TokenList(msgspec.Struct):
    tokens: list[int | TokenPiece]


class Content(msgspec.Struct):
    content: str


class PromptText(msgspec.Struct):
    """The prompt that the model's template makes of a conversation."""

    prompt: str


class ServerProperties(msgspec.Struct):
    """The properties of the server and its model."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class SlotDescription(msgspec.Struct):
    """One concurrency lane of the model, and how far its job is; nobody's text is in it."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class ListedAdapter(msgspec.Struct):
    id: int
    path: str
    scale: float


class SlotFileAnswer(msgspec.Struct):
    """The tokens and bytes that were saved, restored or erased."""

    id_slot: int
    filename: str | msgspec.UnsetType = msgspec.UNSET
    n_saved: int | msgspec.UnsetType = msgspec.UNSET
    n_written: int | msgspec.UnsetType = msgspec.UNSET
    n_restored: int | msgspec.UnsetType = msgspec.UNSET
    n_read: int | msgspec.UnsetType = msgspec.UNSET
    n_erased: int | msgspec.UnsetType = msgspec.UNSET
    timings: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
