"""Sends tensors to another process: small ones within the message, large ones in one memory file beside it.

The file holds the contents of all attached tensors of a message in their order, each at a multiple of ALIGNMENT. So a
message has at most one descriptor, however many tensors it carries.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from corosrv.base.errors import ProtocolError
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import WireTensor
from corosrv.workers.wire.descriptors import MIN_ATTACHED, SealedMap

MAX_WITHIN = 4 << 20  # bytes of all tensors within one message, which has to fit a frame; what is more is attached
ALIGNMENT = 64  # bytes; what numpy and vector instructions want


class TensorPacking:
    """Gathers the tensors of one message. Owns the memory file; leaving the `with` block closes it.

    with TensorPacking() as packing:
        message = CallOutputs(id, packing.pack(tensors))
        channel.send(message, packing.fds())
    """

    def __init__(self) -> None:
        self._n_within = 0  # bytes
        self._n_attached = 0  # bytes, with what aligns them
        self._pieces: list[bytes | memoryview] = []
        self._fds: list[int] = []
        self._is_closed = False

    @property
    def n_attached(self) -> int:
        """The bytes that fds() will copy."""
        return self._n_attached if self._file < 0 else 0

    @property
    def _file(self) -> int:
        """The file that has exactly this content already, as where one tensor is passed on; -1: there is none."""
        raw = self._pieces[-1] if len(self._pieces) == 2 else None
        source = raw.obj if isinstance(raw, memoryview) else None
        return source.fd if isinstance(source, SealedMap) and len(source) == self._n_attached else -1

    def pack(self, tensors: Iterable[Tensor]) -> list[WireTensor]:
        """Returns the next tensors of the message as they are written in it."""
        return [self._pack(tensor) for tensor in tensors]

    def _pack(self, tensor: Tensor) -> WireTensor:
        n_bytes = tensor.n_bytes
        shape, parameters = list(tensor.shape), dict(tensor.parameters)
        if n_bytes < MIN_ATTACHED and self._n_within + n_bytes <= MAX_WITHIN:
            self._n_within += n_bytes
            return WireTensor(tensor.name, tensor.datatype, shape, bytes(tensor.raw), parameters=parameters)
        start = _aligned(self._n_attached)
        self._pieces += (bytes(start - self._n_attached), tensor.raw)
        self._n_attached = start + n_bytes
        return WireTensor(tensor.name, tensor.datatype, shape, n_attached=n_bytes, parameters=parameters)

    def fds(self) -> tuple[int, ...]:
        """Copies large contents into the memory file; returns the descriptors to send beside the message, if any.

        May run in another thread, as it takes a while for many megabytes. Raises OSError.
        """
        if self._pieces and not self._fds:
            file = self._file
            self._fds.append(descriptors.make(self._pieces) if file < 0 else os.dup(file))
            if self._is_closed:  # whoever waited for this thread has given up
                self.close()
        return tuple(self._fds)

    def close(self) -> None:
        """Closes the memory file. Later calls do nothing."""
        self._is_closed = True
        if not self._fds:
            return
        with contextlib.suppress(IndexError):  # by two threads, each descriptor is popped once
            while True:
                os.close(self._fds.pop())

    def __enter__(self) -> TensorPacking:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def unpack(
    groups: Iterable[Sequence[WireTensor]], fds: Sequence[int], *, are_checked: bool = False
) -> list[tuple[Tensor, ...]]:
    """Returns the tensors of a message, group by group as it has them, and closes its descriptors `fds`.

    Attached contents are mapped, not copied; they live as long as their tensors. Raises ProtocolError if the file is
    not as announced, and InvalidTensor for a content that does not fit its datatype and shape. `are_checked`: the other
    side is ours, and has looked at the contents already.
    """
    groups = list(groups)
    return make_tensors(groups, map_attached(groups, fds), are_checked=are_checked)


def map_attached(groups: Sequence[Sequence[WireTensor]], fds: Sequence[int]) -> memoryview:
    """Maps the memory file beside a message of these tensors, and closes the descriptors; the first half of unpack().

    Takes microseconds. Raises ProtocolError if the file is not as announced.
    """
    try:
        return _map(groups, fds)
    finally:
        descriptors.close_all(fds)


def make_tensors(
    groups: Iterable[Sequence[WireTensor]], content: memoryview, *, are_checked: bool = False
) -> list[tuple[Tensor, ...]]:
    """Returns the tensors of a message whose file is mapped; the second half of unpack(), which may read every element.

    Raises InvalidTensor.
    """
    make = Tensor.from_checked if are_checked else Tensor
    start = 0
    unpacked: list[tuple[Tensor, ...]] = []
    for group in groups:
        tensors: list[Tensor] = []
        for wire in group:
            raw: bytes | memoryview = wire.raw
            if wire.n_attached >= 0:
                start = _aligned(start)
                raw = content[start : start + wire.n_attached]
                start += wire.n_attached
            tensors.append(make(wire.name, wire.datatype, wire.shape, raw=raw, parameters=wire.parameters))
        unpacked.append(tuple(tensors))
    return unpacked


def _map(groups: Sequence[Sequence[WireTensor]], fds: Sequence[int]) -> memoryview:
    size, n_tensors = 0, 0
    for group in groups:
        for wire in group:
            if wire.n_attached >= 0:
                size = _aligned(size) + wire.n_attached
                n_tensors += 1
    if len(fds) != min(n_tensors, 1):
        raise ProtocolError(f"{len(fds)} descriptors came with a message of {n_tensors} attached tensors")
    return descriptors.map_value(fds[0], size) if fds else memoryview(b"")


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
