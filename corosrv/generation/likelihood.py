"""Tokens and how likely they were, as chats and llama-server show them."""

from __future__ import annotations

import math
from typing import Any

from corosrv.jobs import Candidate, TokenInfo


def spell(piece: bytes) -> str:
    """A token's text; what is no whole character is shown as U+FFFD, and `bytes` has it."""
    return piece.decode("utf-8", "replace")


def of(token: TokenInfo, post_sampling: bool) -> dict[str, Any]:
    """A token by what the model thought of it, or by what the samplers left of that."""
    return probabilities(token) if post_sampling else logprobs(token)


def logprobs(token: TokenInfo) -> dict[str, Any]:
    """A token with its logarithm, and the likeliest in its place, best first."""
    return {
        **_token(token), "logprob": token.logprob, "top_logprobs": [
            {**_token(other), "logprob": other.logprob} for other in token.top
        ]
    }  # fmt: skip


def probabilities(token: TokenInfo) -> dict[str, Any]:
    """The same, not as logarithms; those that could not have come are left out."""
    tops = ({**_token(other), "prob": math.exp(other.logprob)} for other in token.top)
    return {
        **_token(token),
        "prob": math.exp(token.logprob or 0.0),
        "top_probs": [top for top in tops if top["prob"] > 0],
    }


def _token(token: TokenInfo | Candidate) -> dict[str, Any]:
    return {"id": token.id, "token": spell(token.piece), "bytes": list(token.piece)}
