"""Log probabilities in the shape that text completions have had since before there were chats."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from corosrv.jobs import TokenInfo


class Logprobs:
    """Shows the tokens of one choice, in one piece or in several; offsets count characters of the choice's text."""

    def __init__(self, offset: int = 0) -> None:
        """`offset`: where the first token's text begins; below 0 for tokens that stand before the text."""
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, tokens: Iterable[TokenInfo]) -> dict[str, Any]:
        members: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            members["tokens"].append(_spell(token.piece))
            members["token_logprobs"].append(token.logprob)
            members["top_logprobs"].append(_top(token))
            members["text_offset"].append(max(self._offset, 0))
            self._offset += len(self._decoder.decode(token.piece))
        return members


def _top(token: TokenInfo) -> dict[str, float] | None:
    """The likeliest, and the one that came if it is none of them."""
    if token.logprob is None:
        return None
    return {_spell(other.piece): other.logprob for other in token.top} | {_spell(token.piece): token.logprob}


def _spell(piece: bytes) -> str:
    """Spells a piece as OpenAI does, also one that is no whole character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
