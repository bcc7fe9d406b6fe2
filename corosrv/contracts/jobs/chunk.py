"""Chunks, which a reader yields: pieces of text, and the tokens that they are made of."""

from __future__ import annotations

from enum import Enum

import msgspec


class Finish(str, Enum):
    """Why a task ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An alternative token at this position, with its log-probability."""

    id: int
    piece: bytes  # what it adds to the text; b"" for an end token
    logprob: float  # natural; never infinite


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token that came, and the likeliest in its place, best first: as many as the job asked for."""

    id: int
    piece: bytes
    logprob: float | None  # None: the first token of a prompt, which nothing stands before
    top: tuple[Candidate, ...] = ()


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One thing that a reader yields. The only one with `finish` is its task's terminal chunk, the last."""

    index: int  # which task of the job
    text: str  # whole characters; the message when finish is ERROR
    n_tokens: int  # generated since the task's previous chunk, the end token included
    finish: Finish | None = None
    # Of the task so far, in its terminal chunk and in those that tell of tokens or progress.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    decode_ms: float = 0.0
    # Of the whole task, in its terminal chunk.
    stopping_word: str = ""  # the stop string that ended it
    code: str = ""  # of an ERROR, a word for programs; "" is a bug or a failed decode
    slot: int = -1  # where it ran last
    dropped_tokens: int = 0  # by shifts of the context, to make room
    image_tokens: int = 0  # of the prompt's, those that stand for images
    # Only where the job asks for it.
    tokens: tuple[TokenInfo, ...] = ()  # those that `text` is made of
    prompt_info: tuple[TokenInfo, ...] = ()  # of the prompt's tokens, in the order that they are read
    read_tokens: int = -1  # of the prompt, by now
    vector: bytes = b""  # float32, little-endian: an embedding, or a score alone; in the terminal chunk
