"""Texts to tokens and back, as llama-server does it."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Vocabulary
from corosrv.dialects.llamacpp import schema
from corosrv.formats.bodies import check_text


def tokenize(body: schema.TokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Lets others run meanwhile where the content is long. Raises Refused."""
    tokens = _tokens(body, vocabulary)
    if not body.with_pieces:
        return {"tokens": tokens}
    turns = Turns()
    return {"tokens": [{"id": token, "piece": _piece(vocabulary.piece(token))} for token in turns.among(tokens)]}


def _tokens(body: schema.TokenizeBody, vocabulary: Vocabulary) -> list[int]:
    pieces = [body.content] if isinstance(body.content, str) else body.content
    tokens: list[int] = []
    n_texts = 0
    for place, piece in enumerate(Turns().among(pieces)):
        if isinstance(piece, int):
            tokens.append(_checked(piece, place, vocabulary))
            continue
        n_texts += 1
        if n_texts > schema.MAX_TEXTS:
            raise Refused(f"content: at most {schema.MAX_TEXTS} texts in one list; send several lists", "content")
        begins = bool(body.add_special) and place == 0
        tokens += vocabulary.tokenize(check_text(piece, "content"), begins, body.parse_special is not False)
        if len(tokens) > schema.MAX_TOKENS:
            raise Refused(f"content: over {schema.MAX_TOKENS} tokens in one list; send several lists", "content")
    return tokens


def _checked(token: int, place: int, vocabulary: Vocabulary) -> int:
    if not 0 <= token < vocabulary.size:
        raise Refused(f"content[{place}]: {token} is no token id of this model", f"content[{place}]")
    return token


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def detokenize(body: schema.DetokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Raises Refused for ids that the model does not have."""
    return {"content": vocabulary.spell(body.tokens).decode("utf-8", "replace")}
