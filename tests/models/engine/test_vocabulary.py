"""Texts to tokens, with a vocabulary that makes several tokens of one byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corosrv.models.engine import Engine
from tests.support.engines import opened
from tests.support.gguf import write_llama

BOS = 1
FIRST_BYTE = 3  # the token of byte 0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with opened(model=str(write_llama(tmp_path_factory.mktemp("models") / "bytes.gguf")), slots=1) as engine:
        yield engine


def test_a_text_of_more_tokens_than_bytes_has_them_all(engine: Engine) -> None:
    # The vocabulary writes a space as U+2581, which it has to spell: three tokens for a byte.
    expected = [BOS, *(FIRST_BYTE + byte for byte in "\u2581a\u2581b\u2581c\u2581\u2581".encode())]

    assert engine.vocabulary(None).tokenize("a b c  ", add_special=True, parse_special=True) == expected
