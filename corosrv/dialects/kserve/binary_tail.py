"""Reads the binary extension: tensors in a tail behind the JSON of a body."""

from __future__ import annotations

from corosrv.base.errors import InvalidTensor, Refused

LENGTH_HEADER = "Inference-Header-Content-Length"  # bytes of the JSON, before any compression
SIZE = "binary_data_size"  # a tensor's parameter: how many bytes of the tail are its own

_MAX_DIGITS = 15


class BinaryTail:
    """Hands out the bytes behind a body's JSON, which tensors take in their order. Copies nothing."""

    def __init__(self, content: memoryview | None) -> None:
        """`content`: None where there is no tail, since nothing says how long the JSON is."""
        self._content = content
        self._at = 0

    def take(self, name: str, size: object) -> memoryview:
        """Returns the bytes of the next tensor. Raises InvalidTensor for a size that is none, or is not there."""
        if type(size) is not int or size < 0:
            raise InvalidTensor(name, f"has a {SIZE} that is no integer from 0 on")
        if self._content is None:
            raise InvalidTensor(name, f"has a {SIZE}, but the request has no header {LENGTH_HEADER}")
        n_left = len(self._content) - self._at
        if size > n_left:
            raise InvalidTensor(name, f"has a {SIZE} of {size}, where {n_left} bytes are left in the body")
        self._at += size
        return self._content[self._at - size : self._at]

    def check_is_used_up(self) -> None:
        """Raises Refused where bytes are left that no tensor has taken."""
        if self._content is not None and self._at < len(self._content):
            raise Refused(f"the body has {len(self._content) - self._at} bytes behind its last tensor", SIZE)


def split_body(body: bytes, json_length: str | None) -> tuple[bytes, BinaryTail]:
    """Returns a body's JSON and its tail. Raises Refused for a header that is no length within the body."""
    if json_length is None:
        return body, BinaryTail(None)
    text = json_length.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise Refused(f"the header {LENGTH_HEADER} is no integer from 0 on", LENGTH_HEADER)
    length = int(text)
    if length > len(body):
        raise Refused(f"the header {LENGTH_HEADER} says {length}, where the body has {len(body)} bytes", LENGTH_HEADER)
    return body[:length], BinaryTail(memoryview(body)[length:])
