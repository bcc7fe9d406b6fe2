"""Files of slots' contents: a header, tokens, scales of adapters, the model's own state, and a digest of it all."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

import msgspec

from corosrv.base.errors import NotFound, Refused, Unavailable
from corosrv.models.engine.binding import SlotContent

# Magic, version, owner, the model's identity, numbers of tokens and scales, bytes of state.
_HEADER = struct.Struct("<8sIQ32sIIQ")
_MAGIC = b"corosrv\x00"
_VERSION = 1
_DIGEST_BYTES = 32
_TOKEN_BYTES = _SCALE_BYTES = 4


class FileOwner(msgspec.Struct, frozen=True):
    """The caller that a file belongs to, and its model."""

    model: bytes  # 32 bytes that no other model has
    caller: int  # of 64 bits


class SlotFileLimits(msgspec.Struct, frozen=True):
    """The most that a file may hold."""

    tokens: int
    scales: int
    state_bytes: int


def write(path: str, content: SlotContent, owner: FileOwner) -> int:
    """Writes all or nothing, and returns the bytes. Takes long; raises Refused for a file that is another caller's."""
    if _caller_of(path) not in (None, owner.caller):
        raise Refused("filename: this name is taken", "filename")
    header = _HEADER.pack(
        _MAGIC, _VERSION, owner.caller, owner.model, len(content.tokens) // _TOKEN_BYTES,
        len(content.adapter_scales) // _SCALE_BYTES, len(content.state),
    )  # fmt: skip
    parts = (header, content.tokens, content.adapter_scales, content.state)
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
    try:
        with open(unfinished, "xb", opener=_private) as file:
            for part in (*parts, _digest(parts)):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(unfinished)
        raise Unavailable(f"the slot file could not be written: {error.strerror}") from error
    return n_bytes


def read(path: str, owner: FileOwner, limits: SlotFileLimits) -> tuple[SlotContent, int]:
    """Reads a file's content and its size in bytes. Takes long; raises NotFound and Refused.

    Nothing is allocated for numbers that a file only claims.
    """
    try:
        with open(path, "rb", opener=_no_link) as file:
            return _read(file, os.path.basename(path), owner, limits)
    except OSError as error:
        raise _not_found(os.path.basename(path)) from error


def _read(file: BinaryIO, name: str, owner: FileOwner, limits: SlotFileLimits) -> tuple[SlotContent, int]:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Refused("filename: this is no file", "filename")
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise _broken("it does not begin like one")
    _, version, caller, model, n_tokens, n_scales, n_state = _HEADER.unpack(header)
    if version != _VERSION:
        raise _broken(f"it has version {version}, and {_VERSION} is read here")
    if caller != owner.caller:
        raise _not_found(name)
    if n_tokens > limits.tokens or n_scales > limits.scales or n_state > limits.state_bytes:
        raise _broken(
            f"its {n_tokens} tokens and {n_state} bytes are more than a slot of {limits.tokens} tokens and a prefix "
            f"cache of {limits.state_bytes} bytes take"
        )
    sizes = (_TOKEN_BYTES * n_tokens, _SCALE_BYTES * n_scales, n_state)
    if status.st_size != _HEADER.size + sum(sizes) + _DIGEST_BYTES:
        raise _broken("it is longer or shorter than it says")
    parts = [file.read(size) for size in sizes]
    if file.read(_DIGEST_BYTES) != _digest([header, *parts]):
        raise _broken("its digest is another one")
    if model != owner.model:
        raise _broken("it was written for another model, or by another build of libllama")
    return SlotContent(*parts), status.st_size


def _caller_of(path: str) -> int | None:
    """Returns the caller that a file belongs to; None where there is no slot file."""
    try:
        with open(path, "rb", opener=_no_link) as file:
            header = file.read(_HEADER.size)
    except OSError:
        return None
    is_ours = len(header) == _HEADER.size and header.startswith(_MAGIC)
    return int(_HEADER.unpack(header)[2]) if is_ours else None


def _digest(parts: Sequence[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _no_link(path: str, flags: int) -> int:
    # Whoever opens a pipe would wait for its other end.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _not_found(name: str) -> NotFound:
    return NotFound(f"filename: there is no slot file '{name}'", "filename")


def _broken(why: str) -> Refused:
    return Refused(f"filename: this is no slot file that can be read: {why}", "filename")
