"""Texts to tokens and back, as llama-server does it."""

from __future__ import annotations

from typing import Any

from corosrv.http.body import check_text
from corosrv.jobs import Vocabulary
from corosrv.llamacpp import schema


def tokenize(body: schema.TokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """May wait while a long text is read. Raises Refused."""
    content = check_text(body.content, "content")
    tokens = vocabulary.tokenize(content, bool(body.add_special), body.parse_special is not False)
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(vocabulary.piece(token))} for token in tokens]}


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenize(body: schema.DetokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises Refused for ids that the model does not have."""
    return {"content": b"".join(map(vocabulary.piece, body.tokens)).decode("utf-8", "replace")}
