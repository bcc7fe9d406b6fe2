"""The objects of a server as handlers use them: large values that calls pass to each other by reference.

A value is written and read as its content type says. Nothing is ever pickled.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from corosrv.base.errors import InvalidTensor, OutputFailed
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.formats.tensors import Tensor
from corosrv.formats.tensors.tensor import is_array
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import ObjectAnswer, ObjectAsk, ObjectCreate, ObjectDelete, ObjectGet, ObjectLookup
from corosrv.workers.wire.descriptors import MIN_ATTACHED
from corosrv.workers.worker.app.typed_values import tensor_of

BINARY = "application/octet-stream"
JSON = "application/json"
TENSOR = "application/x-corosrv-tensor"  # with its datatype and shape as parameters
_NAME = "object"  # of a tensor that was read


def write_value(value: Any, content_type: str | None) -> tuple[str, bytes | memoryview]:
    """Returns the content type and the content of bytes, of a tensor or an array, or of what JSON can hold.

    `content_type`: for bytes alone. Raises OutputFailed.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return content_type or BINARY, value if isinstance(value, bytes) else memoryview(value).cast("B")
    if content_type is not None:
        raise OutputFailed(f"an object of the type {content_type!r} needs bytes, and no {type(value).__name__}")
    try:
        if isinstance(value, Tensor) or is_array(value):
            tensor = tensor_of(_NAME, value)
            shape = "x".join(map(str, tensor.shape))
            return f"{TENSOR}; datatype={tensor.datatype}; shape={shape}", tensor.raw
        return JSON, msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, InvalidTensor) as error:
        raise OutputFailed(f"no object can hold this {type(value).__name__}: {error}") from error


def read_value(content_type: str, content: bytes | memoryview) -> Any:
    """Returns what write_value() wrote; bytes for every other content type. A tensor shares the memory of `content`.

    Raises InvalidTensor and ValueError for a content that is not of its type.
    """
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if kind == JSON:
        return msgspec.json.decode(content)
    if kind != TENSOR:
        return bytes(content)
    values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
    shape = [int(size) for size in values.get("shape", "").split("x") if size]
    return Tensor(_NAME, values.get("datatype", ""), shape, raw=content)


def input_of(name: str, value: Any) -> Tensor:
    """Returns the value of an object as an input of a call: bytes become one element of BYTES. Raises InvalidTensor."""
    return tensor_of(name, [value] if isinstance(value, bytes) else value)


ObjectReply = tuple[ObjectAnswer, tuple[int, ...]]  # with the descriptors that came with it
MakeObjectAsk = Callable[[int], ObjectAsk]  # with its number
AskStore = Callable[[MakeObjectAsk, Sequence[int]], ObjectReply]  # waits; the descriptors stay the caller's
AskStoreAsync = Callable[[MakeObjectAsk, Sequence[int]], Awaitable[ObjectReply]]


class Objects:
    """The `objects` of a Context. Each method asks the server and waits for it.

    All of them raise NotFound for an object that is gone, Unavailable where the store is full, and the other errors of
    Context.call.
    """

    def __init__(self, ask: AskStore) -> None:
        self._ask = ask

    def create(
        self, data: Any, key: str | None = None, ttl_s: float = 3600.0, content_type: str | None = None
    ) -> ObjRef:
        """Stores bytes, a tensor, an array, or what JSON can hold, for `ttl_s` seconds; returns a reference to it.

        With a key it replaces what lookup() finds; references to the earlier object stay valid. `content_type`: of
        bytes.
        """
        with _creation(data, key, ttl_s, content_type) as (make_message, fds):
            return _ref(self._ask(make_message, fds))

    def lookup(self, key: str) -> ObjRef | None:
        """Returns a reference to what was stored last under a key; None if there is none."""
        return _answer(self._ask(functools.partial(ObjectLookup, key=key), ())).ref

    def get(self, ref: ObjRef | str) -> Any:
        """Returns the value of an object: bytes, a Tensor, or what JSON held. A large tensor is mapped, not copied."""
        return _value(self._ask(functools.partial(ObjectGet, id=_id(ref)), ()))

    def delete(self, ref: ObjRef | str) -> None:
        """Removes an object, and what lookup() finds by its key."""
        _answer(self._ask(functools.partial(ObjectDelete, id=_id(ref)), ()))


class AsyncObjects:
    """The `objects` of an AsyncContext: as Objects, and every method is awaited."""

    def __init__(self, ask: AskStoreAsync) -> None:
        self._ask = ask

    async def create(
        self, data: Any, key: str | None = None, ttl_s: float = 3600.0, content_type: str | None = None
    ) -> ObjRef:
        """Stores a value; see Objects.create."""
        with _creation(data, key, ttl_s, content_type) as (make_message, fds):
            return _ref(await self._ask(make_message, fds))

    async def lookup(self, key: str) -> ObjRef | None:
        """Returns a reference to what was stored last under a key; None if there is none."""
        return _answer(await self._ask(functools.partial(ObjectLookup, key=key), ())).ref

    async def get(self, ref: ObjRef | str) -> Any:
        """Returns the value of an object; see Objects.get."""
        return _value(await self._ask(functools.partial(ObjectGet, id=_id(ref)), ()))

    async def delete(self, ref: ObjRef | str) -> None:
        """Removes an object; see Objects.delete."""
        _answer(await self._ask(functools.partial(ObjectDelete, id=_id(ref)), ()))


@contextmanager
def _creation(
    data: Any, key: str | None, ttl_s: float, content_type: str | None
) -> Iterator[tuple[MakeObjectAsk, tuple[int, ...]]]:
    """Makes the message that stores a value, and the descriptors beside it, which are closed afterwards."""
    import hashlib  # few handlers store objects

    written_type, content = write_value(data, content_type)
    sha256 = hashlib.sha256(content).hexdigest()
    options: dict[str, Any] = {"sha256": sha256, "content_type": written_type, "key": key or "", "ttl_s": float(ttl_s)}
    if len(content) < MIN_ATTACHED:
        yield functools.partial(ObjectCreate, **options, data=bytes(content)), ()
        return
    fd = descriptors.make([content])
    try:
        yield functools.partial(ObjectCreate, **options, n_attached=len(content)), (fd,)
    finally:
        os.close(fd)


def _id(ref: ObjRef | str) -> str:
    return ref.id if isinstance(ref, ObjRef) else ref


def _answer(reply: ObjectReply) -> ObjectAnswer:
    """Returns an answer that needs no descriptor. Raises the error that it is."""
    answer, fds = reply
    descriptors.close_all(fds)
    if answer.fault is not None:
        raise answer.fault.error()
    return answer


def _ref(reply: ObjectReply) -> ObjRef:
    ref = _answer(reply).ref
    assert ref is not None, "what was stored has one"
    return ref


def _value(reply: ObjectReply) -> Any:
    answer, fds = reply
    content: bytes | memoryview = answer.data
    try:
        if answer.fault is None and answer.n_attached >= 0 and fds:
            content = descriptors.map_value(fds[0], answer.n_attached)
    finally:
        _answer(reply)
    assert answer.ref is not None, "what is stored has one"
    return read_value(answer.ref.content_type, content)
