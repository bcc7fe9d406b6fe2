"""A model's tokens: an engine's, or loaded by themselves without the model's weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from corosrv.base import errors
from corosrv.base.processor import Turns
from corosrv.models.engine.binding.library import MESSAGE_BYTES, check, ffi, lib
from corosrv.models.engine.binding.options import BorrowedOptions
from corosrv.models.engine.binding.values import Options


class TokenCalls(ABC):
    """Calls the core about tokens, with the corosrv_vocabulary that a subclass has."""

    @abstractmethod
    def _vocabulary(self) -> Any:
        """Returns the handle. Raises UsedAfterClose."""

    def tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
        """Returns token ids; takes time in proportion to the text, without the GIL."""
        n_tokens, n_found = ffi.new("size_t *"), len(text) + 2
        handle, capacity = self._vocabulary(), 0
        # Nearly every text has at most that many; some vocabularies make several tokens of a byte: those ask twice.
        while n_found > capacity:
            capacity = n_found
            tokens = ffi.new("int32_t[]", capacity)
            check(lib.corosrv_tokenize(handle, text, len(text), add_special, parse_special, tokens, capacity, n_tokens))
            n_found = n_tokens[0]
        return list(ffi.unpack(tokens, n_found)) if n_found else []

    def token_text(self, token: int, special: bool = False) -> bytes:
        handle, text = self._vocabulary(), ffi.new("corosrv_text *")
        check(lib.corosrv_token_text(handle, token, special, text))
        return bytes(ffi.buffer(text.data, text.size))

    def control_tokens(self) -> list[int]:
        """Returns the tokens that are no text, as those that begin a turn. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_control)

    def end_tokens(self) -> list[int]:
        """Returns the tokens that end an answer. Lets others run meanwhile."""
        return self._tokens_that(lib.corosrv_token_is_end)

    def show_tokens(self, tokens: Sequence[int]) -> None:
        """Makes these control tokens part of the text of answers, but for those that end one.

        Raises Refused once an engine has had a task, and for ids that the model does not have.
        """
        message = ffi.new("char[]", MESSAGE_BYTES)
        handle, ids = self._vocabulary(), ffi.new("int32_t[]", list(tokens))
        check(lib.corosrv_show_tokens(handle, ids, len(tokens), message, MESSAGE_BYTES), message)

    def _tokens_that(self, are: Callable[[Any, int], int]) -> list[int]:
        size = ffi.new("int32_t *")
        check(lib.corosrv_vocabulary_size(self._vocabulary(), size))
        # It may be closed between two turns.
        return [token for token in Turns().among(range(size[0])) if are(self._vocabulary(), token)]


class NativeVocabulary(TokenCalls):
    """Handle of a corosrv_vocabulary that was loaded without the weights. Closed when dropped."""

    def __init__(self, options: Options) -> None:
        """Loads it; waits, without the GIL. Of the options the model alone counts."""
        borrowed = BorrowedOptions(options)
        vocabulary, message = ffi.new("corosrv_vocabulary **"), ffi.new("char[]", MESSAGE_BYTES)
        check(lib.corosrv_vocabulary_open(borrowed.struct, vocabulary, message, MESSAGE_BYTES), message)
        self._handle: Any = ffi.gc(vocabulary[0], lib.corosrv_vocabulary_close)

    def _vocabulary(self) -> Any:
        if self._handle is None:
            raise errors.UsedAfterClose("the vocabulary is closed; open another one")
        return self._handle

    def close(self) -> None:
        """Frees it, as soon as no call is under way in another thread. Twice is harmless."""
        self._handle = None
