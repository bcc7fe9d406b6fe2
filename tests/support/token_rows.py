"""Embedding rows that a model would look up for tokens itself: what a prompt of rows is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corosrv.contracts.jobs import Pieces, Rows, Tokens
from tests.support.token_table import TokenTable

Run = tuple[str, Sequence[int]]  # "tokens" or "rows", and the ids of either


class TokenRows:
    """Makes prompts of a model's tokens and of their rows."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self.width = table.n_embd

    def data(self, ids: Sequence[int]) -> bytes:
        return self._table.rows(ids)

    def rows(self, ids: Sequence[int]) -> Rows:
        return Rows.of_data(self.data(ids), self.width)

    def pieces(self, *runs: Run) -> Pieces:
        """A prompt of these runs, in order."""
        return Pieces(tuple(Tokens(tuple(ids)) if kind == "tokens" else self.rows(ids) for kind, ids in runs))


@contextmanager
def token_rows(model: str) -> Iterator[TokenRows]:
    """The rows of a model file's token table, which is closed at the end."""
    table = TokenTable(model)
    try:
        yield TokenRows(table)
    finally:
        table.close()
