"""Tensors within and beside messages."""

from __future__ import annotations

import os

import pytest

from corosrv.base.errors import InvalidTensor, ProtocolError
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import WireTensor
from corosrv.workers.wire.descriptors import MIN_ATTACHED
from corosrv.workers.wire.tensors import ALIGNMENT, MAX_WITHIN, TensorPacking, unpack
from tests.support.descriptors import n_descriptors


def small(name: str = "small") -> Tensor:
    return Tensor(name, "INT32", [2, 1], data=[7, -1], parameters={"unit": "m", "is_good": True, "n": 1, "x": 1.0})


def of_bytes(name: str, n_bytes: int, fill: bytes = b"\x01") -> Tensor:
    return Tensor(name, "UINT8", [n_bytes], raw=fill * n_bytes)


def sent_across(*groups: list[Tensor]) -> list[tuple[Tensor, ...]]:
    """Returns what arrives; the descriptors are as the kernel hands them over, other ones."""
    with TensorPacking() as packing:
        wire = [packing.pack(group) for group in groups]
        fds = [os.dup(fd) for fd in packing.fds()]
    return unpack(wire, fds)


def content(tensor: Tensor) -> tuple[object, ...]:
    return tensor.name, tensor.datatype, tensor.shape, bytes(tensor.raw), tensor.parameters


def test_a_small_tensor_arrives_within_its_message() -> None:
    with TensorPacking() as packing:
        (wire,) = packing.pack([small()])

        assert packing.fds() == ()
    ((tensor,),) = unpack([[wire]], ())
    assert content(tensor) == content(small())


def test_tensors_of_all_sizes_arrive_in_their_groups_and_order() -> None:
    first = [small("a"), of_bytes("b", MIN_ATTACHED + 1, b"b"), small("c")]
    second = [of_bytes("d", MIN_ATTACHED, b"d"), of_bytes("e", 0)]

    arrived = sent_across(first, second, [])

    assert [[content(tensor) for tensor in group] for group in arrived] == [
        [content(tensor) for tensor in group] for group in (first, second, [])
    ]


def test_every_attached_content_is_aligned() -> None:
    ((_, second),) = sent_across([of_bytes("a", MIN_ATTACHED + 1), of_bytes("b", MIN_ATTACHED)])

    assert second.as_numpy().ctypes.data % ALIGNMENT == 0


def test_many_small_tensors_never_exceed_a_frame_or_one_descriptor() -> None:
    tensors = [of_bytes(f"t{number}", 60_000) for number in range(300)]

    with TensorPacking() as packing:
        wire = packing.pack(tensors)

        assert sum(len(tensor.raw) for tensor in wire) <= MAX_WITHIN
        assert len(packing.fds()) == 1
        assert packing.n_attached > 300 * 60_000 - MAX_WITHIN - 1


@pytest.mark.own_process
def test_nothing_stays_open() -> None:
    before = n_descriptors()
    ((tensor,),) = sent_across([of_bytes("a", MIN_ATTACHED)])

    assert tensor.raw[-1] == 1
    del tensor
    assert n_descriptors() <= before


@pytest.mark.own_process
@pytest.mark.parametrize("size", [MIN_ATTACHED - 1, MIN_ATTACHED + 1, 1 << 50])
def test_a_file_of_another_size_than_announced_is_refused_and_closed(size: int) -> None:
    before = n_descriptors()
    fd = descriptors.make([bytes(MIN_ATTACHED)])

    with pytest.raises(ProtocolError, match="were announced"):
        unpack([[WireTensor("a", "UINT8", [size], n_attached=size)]], [fd])
    assert n_descriptors() <= before


@pytest.mark.parametrize("n_fds", [0, 2])
def test_a_message_with_another_number_of_files_is_refused(n_fds: int) -> None:
    fds = [descriptors.make([b"x"]) for _ in range(n_fds)]

    with pytest.raises(ProtocolError, match=f"{n_fds} descriptors"):
        unpack([[WireTensor("a", "UINT8", [1], n_attached=1)]], fds)


def test_a_file_beside_a_message_without_attached_tensors_is_refused() -> None:
    with pytest.raises(ProtocolError, match="1 descriptors"):
        unpack([[WireTensor("a", "UINT8", [1], b"x")]], [descriptors.make([b"x"])])


def test_a_content_that_does_not_fit_its_shape_is_refused() -> None:
    with pytest.raises(InvalidTensor, match="has 3 bytes, where its shape needs 8"):
        unpack([[WireTensor("a", "INT32", [2], b"abc")]], ())


@pytest.mark.own_process
def test_a_file_that_is_made_after_its_packing_was_closed_is_closed_too() -> None:
    before = n_descriptors()
    packing = TensorPacking()
    packing.pack([of_bytes("a", MIN_ATTACHED)])
    packing.close()

    assert packing.fds() == ()
    assert n_descriptors() <= before


def test_a_tensor_that_is_passed_on_stays_in_its_memory_file() -> None:
    ((first,),) = sent_across([of_bytes("a", MIN_ATTACHED, b"a")])
    with TensorPacking() as packing:
        (wire,) = packing.pack([Tensor("b", "INT8", [2, MIN_ATTACHED // 2], raw=first.raw)])
        n_copied = packing.n_attached
        (fd,) = packing.fds()
        is_same = os.path.sameopenfile(fd, first.raw.obj.fd)  # type: ignore[union-attr]
        ((second,),) = unpack([[wire]], [os.dup(fd)])
    before = content(second)
    del first

    assert (n_copied, is_same) == (0, True)
    assert content(second) == before == ("b", "INT8", (2, MIN_ATTACHED // 2), b"a" * MIN_ATTACHED, {})


def test_a_part_of_a_memory_file_and_several_tensors_of_it_are_copied() -> None:
    first, second = (tensor for (tensor,) in sent_across([of_bytes("a", 2 * MIN_ATTACHED)], [of_bytes("b", 1)]))
    part = Tensor("part", "UINT8", [MIN_ATTACHED], raw=memoryview(first.raw)[MIN_ATTACHED:])

    for sent in ([part], [first, first], [first, second, part]):
        (arrived,) = sent_across(sent)
        assert [content(tensor) for tensor in arrived] == [content(tensor) for tensor in sent]


@pytest.mark.own_process
def test_values_that_were_passed_on_leave_no_descriptor_open() -> None:
    before = n_descriptors()
    ((tensor,),) = sent_across([of_bytes("a", MIN_ATTACHED)])
    for _ in range(3):
        ((tensor,),) = sent_across([tensor])
    del tensor

    assert n_descriptors() == before
