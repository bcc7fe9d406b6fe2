"""Texts to tokens and back, as llama-server does it."""

from __future__ import annotations

from typing import Any

from corosrv.decoding.text import check_text
from corosrv.errors import Refused
from corosrv.jobs import Vocabulary
from corosrv.llamacpp import schema


def tokenize(body: schema.TokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """May wait while a long text is read. Raises Refused."""
    tokens = _tokens(body, vocabulary)
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(vocabulary.piece(token))} for token in tokens]}


def _tokens(body: schema.TokenizeBody, vocabulary: Vocabulary) -> list[int]:
    pieces, tokens = [body.content] if isinstance(body.content, str) else body.content, list[int]()
    for place, piece in enumerate(pieces):
        if isinstance(piece, int):
            if not 0 <= piece < vocabulary.size:
                raise Refused(f"content[{place}]: {piece} is no token id of this model", f"content[{place}]")
            tokens.append(piece)
        else:
            begins = bool(body.add_special) and place == 0
            tokens += vocabulary.tokenize(check_text(piece, "content"), begins, body.parse_special is not False)
    return tokens


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenize(body: schema.DetokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises Refused for ids that the model does not have."""
    return {"content": vocabulary.spell(body.tokens).decode("utf-8", "replace")}
