"""Finds the tokens of each piece of a text."""

from __future__ import annotations

from collections import deque

from corosrv.contracts.jobs import TokenInfo


class TokenQueue:
    """Tokens of a text, which are taken piece by piece with it. A token belongs to the piece that it ends in."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenInfo]] = deque()
        self._n_queued = 0  # bytes of all tokens so far
        self._n_taken = 0  # bytes of all text so far

    def add(self, tokens: tuple[TokenInfo, ...]) -> None:
        for token in tokens:
            self._n_queued += len(token.piece)
            self._waiting.append((self._n_queued, token))

    def take(self, text: str) -> tuple[TokenInfo, ...]:
        """Takes the next piece of the text away. Returns its tokens."""
        if self._n_queued == 0:
            return ()
        self._n_taken += len(text.encode())
        tokens = []
        while self._waiting and self._waiting[0][0] <= self._n_taken:
            tokens.append(self._waiting.popleft()[1])
        return tuple(tokens)

    def take_all(self) -> tuple[TokenInfo, ...]:
        """Returns all tokens left: those that add no text, or a part of a character that never became complete."""
        tokens = tuple(token for _, token in self._waiting)
        self._waiting.clear()
        return tokens
