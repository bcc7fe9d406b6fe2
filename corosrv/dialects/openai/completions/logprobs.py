"""Log probabilities in the shape that text completions have had since before there were chats."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from corosrv.contracts.jobs import TokenInfo
from corosrv.dialects.openai.answer_types import TextLogprobs


class Logprobs:
    """Shows the tokens of one choice, in one piece or in several; offsets count characters of the choice's text."""

    def __init__(self, offset: int = 0) -> None:
        """`offset`: where the first token's text begins; below 0 for tokens that stand before the text."""
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, tokens: Sequence[TokenInfo]) -> TextLogprobs:
        return TextLogprobs(
            [_spell(token.piece) for token in tokens],
            [token.logprob for token in tokens],
            [_top(token) for token in tokens],
            [self._advance(token) for token in tokens],
        )

    def _advance(self, token: TokenInfo) -> int:
        """Returns where the token begins, and moves behind it."""
        begin = max(self._offset, 0)
        self._offset += len(self._decoder.decode(token.piece))
        return begin


def _top(token: TokenInfo) -> dict[str, float] | None:
    """Returns the likeliest tokens, and the one that came if it is none of them."""
    if token.logprob is None:
        return None
    return {_spell(other.piece): other.logprob for other in token.top} | {_spell(token.piece): token.logprob}


def _spell(piece: bytes) -> str:
    """Spells a piece as OpenAI does, also one that is no whole character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
