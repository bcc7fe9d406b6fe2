"""Tokens and how likely they were, as chat completions list them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corosrv.jobs import Candidate, TokenInfo


def of(tokens: Iterable[TokenInfo]) -> dict[str, Any]:
    """The `logprobs` member of a choice."""
    content = [{**_one(token), "top_logprobs": [_one(candidate) for candidate in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _one(token: TokenInfo | Candidate) -> dict[str, Any]:
    return {
        "id": token.id,
        "token": token.piece.decode("utf-8", "replace"),
        "bytes": list(token.piece),
        "logprob": token.logprob,
    }
