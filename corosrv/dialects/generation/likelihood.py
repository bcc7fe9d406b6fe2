"""Tokens and how likely they were, as chats and llama-server show them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import msgspec

from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Candidate, TokenInfo
from corosrv.dialects.generation.answer_types import LikelyToken, TokenLikelihood


def spell(piece: bytes) -> str:
    """Writes a token's text; what is no whole character is shown as U+FFFD, and `bytes` has it."""
    return piece.decode("utf-8", "replace")


def describe_all(tokens: Iterable[TokenInfo], post_sampling: bool) -> list[TokenLikelihood]:
    """Describes tokens for a member of an answer, as JSON text that only msgspec.json.encode takes.

    Lets other greenlets run in between: an answer of 1,000 tokens may have 100,000 candidates, whose objects would take
    100 bytes each, and their encoding 0.1 s at once.
    """
    texts = [msgspec.json.encode(describe(token, post_sampling)) for token in Turns().among(tokens)]
    return cast(list[TokenLikelihood], msgspec.Raw(b"[" + b",".join(texts) + b"]"))


def describe(token: TokenInfo, post_sampling: bool) -> TokenLikelihood:
    """Describes a token by what the model thought of it, or by what the samplers left of that."""
    return probabilities(token) if post_sampling else logprobs(token)


def logprobs(token: TokenInfo) -> TokenLikelihood:
    """Describes a token with the logarithm of its probability, and the likeliest in its place, best first."""
    tops = [LikelyToken(*_token(other), logprob=other.logprob) for other in token.top]
    return TokenLikelihood(*_token(token), logprob=token.logprob, top_logprobs=tops)


def probabilities(token: TokenInfo) -> TokenLikelihood:
    """Describes a token with its probability, not the logarithm; those that could not have come are left out."""
    likely = ((other, math.exp(other.logprob)) for other in token.top)
    tops = [LikelyToken(*_token(other), prob=prob) for other, prob in likely if prob > 0]
    return TokenLikelihood(*_token(token), prob=math.exp(token.logprob or 0.0), top_probs=tops)


def _token(token: TokenInfo | Candidate) -> tuple[int, str, list[int]]:
    return token.id, spell(token.piece), list(token.piece)
