"""Types of the answers of llama-server's endpoints, as the API document describes them.

The type of a completion is in `corosrv.dialects.generation.answer_types`: other dialects show it in addition to theirs.
"""

from __future__ import annotations

from typing import Any

import msgspec


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
