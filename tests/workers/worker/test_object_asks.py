"""Objects of handlers: each message about them gets one answer, large contents as memory files that nobody copies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import pytest

from corosrv.base.errors import ChannelClosed, ProtocolError
from corosrv.contracts.jobs.terms import Terms
from corosrv.workers.objects import ObjectStore
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.calls import ObjectAnswer, ObjectAsk, ObjectCreate, ObjectDelete, ObjectGet, ObjectLookup
from corosrv.workers.worker.parent.asks import CallAsks, ObjectAsks
from corosrv.workers.worker.parent.call_services import CallServices
from tests.support.descriptors import n_descriptors

LARGE = os.urandom(descriptors.MIN_ATTACHED)


class Lane:
    """Keeps what was sent, with descriptors of its own, as a channel does."""

    def __init__(self) -> None:
        self.answers: list[ObjectAnswer] = []
        self.contents: list[bytes] = []

    def send(self, answer: ObjectAnswer, fds: Sequence[int]) -> None:
        self.answers.append(answer)
        if fds:
            self.contents.append(bytes(descriptors.map_value(fds[0], answer.n_attached)))
        else:
            self.contents.append(answer.data)


@pytest.fixture
def store():
    store = ObjectStore(max_object=2 << 20)
    yield store
    store.close()


def ask(store: ObjectStore, *messages: tuple[ObjectAsk, Sequence[int]] | ObjectAsk, caller: str = "") -> Lane:
    lane = Lane()
    asks = ObjectAsks(store, lane.send, caller)
    for message in messages:
        asks.on_message(*message if isinstance(message, tuple) else (message, ()))
    return lane


def create(number: int, data: bytes, key: str = "", sha256: str = "0" * 64) -> tuple[ObjectCreate, tuple[int, ...]]:
    if len(data) < descriptors.MIN_ATTACHED:
        return ObjectCreate(number, sha256, "text/plain", data, key=key), ()
    return ObjectCreate(number, sha256, "text/plain", n_attached=len(data), key=key), (descriptors.make([data]),)


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["within the message", "in a memory file"])
def test_one_call_reads_what_another_stored(store: ObjectStore, data: bytes):
    digest = hashlib.sha256(data).hexdigest()
    created = ask(store, create(1, data, sha256=digest)).answers[0]
    assert created.ref is not None

    lane = ask(store, ObjectGet(7, created.ref.id))

    assert (lane.answers[0].number, lane.answers[0].ref) == (7, created.ref)
    assert lane.contents == [data]
    assert created.ref.sha256 == digest


def test_a_large_content_is_kept_in_the_file_that_the_handler_made(store: ObjectStore):
    message, fds = create(1, LARGE)
    inode = os.fstat(fds[0]).st_ino

    ref = ask(store, (message, fds)).answers[0].ref

    assert ref is not None
    fd = store.get(ref.id, 0).content.fd
    assert fd is not None
    assert os.fstat(fd).st_ino == inode


def test_a_key_finds_the_object_and_nothing_once_it_is_deleted(store: ObjectStore):
    ref = ask(store, create(1, b"v", key="k")).answers[0].ref
    assert ref is not None

    answers = ask(
        store, ObjectLookup(2, "k"), ObjectDelete(3, ref.id), ObjectLookup(4, "k"), ObjectGet(5, ref.id)
    ).answers

    assert [answer.number for answer in answers] == [2, 3, 4, 5]
    assert (answers[0].ref, answers[1].fault, answers[2].ref) == (ref, None, None)
    assert answers[3].fault is not None
    assert (answers[3].fault.status, answers[3].fault.code) == (404, "object_not_found")


def test_an_object_of_another_caller_is_not_there(store: ObjectStore):
    ref = ask(store, create(1, b"v", key="k"), caller="a").answers[0].ref
    assert ref is not None

    answers = ask(store, ObjectLookup(1, "k"), ObjectGet(2, ref.id), caller="b").answers

    assert answers[1].fault is not None
    assert (answers[0].ref, answers[1].fault.status) == (None, 404)


@pytest.mark.own_process
def test_a_refused_object_says_why_and_leaves_no_descriptor(store: ObjectStore):
    before = n_descriptors("memfd:")

    (answer,) = ask(store, create(1, bytes(3 << 20))).answers

    assert answer.fault is not None
    assert (answer.fault.status, answer.ref) == (413, None)
    assert "3145728" in answer.fault.message
    assert n_descriptors("memfd:") == before


@pytest.mark.own_process
@pytest.mark.parametrize("case", ["no file", "wrong size", "not sealed", "a file too many"])
def test_a_content_that_is_not_as_announced_is_a_protocol_error_and_leaves_no_descriptor(store: ObjectStore, case: str):
    before = n_descriptors("memfd:")
    message, fds = create(1, LARGE)
    match case:
        case "no file":
            os.close(fds[0])
            fds = ()
        case "wrong size":
            message = ObjectCreate(1, "", "text/plain", n_attached=5)
        case "not sealed":
            os.close(fds[0])
            fds = (os.memfd_create("open"),)
            os.ftruncate(fds[0], len(LARGE))
        case _:
            message = ObjectCreate(1, "", "text/plain", b"within")

    with pytest.raises(ProtocolError):
        ask(store, (message, fds))

    assert n_descriptors("memfd:") == before


def test_a_lane_that_is_closed_is_no_error(store: ObjectStore):
    def send(answer: ObjectAnswer, fds: Sequence[int]) -> None:
        raise ChannelClosed("closed")

    ObjectAsks(store, send).on_message(*create(1, b"v", key="k"))

    assert store.lookup("k", 0) is not None


def test_what_a_call_has_read_is_not_evicted_before_its_end():
    store = ObjectStore(max_bytes=10)
    lane = Lane()
    call = CallAsks(CallServices(objects=store), lane, Terms())  # type: ignore[arg-type]
    call.on_message(*create(1, b"12345678"))
    assert lane.answers[0].ref is not None
    for number in (2, 3):
        call.on_message(ObjectGet(number, lane.answers[0].ref.id), ())

    call.on_message(*create(4, b"abcd"))
    call.close()
    call.on_message(*create(5, b"efgh"))

    assert [answer.fault and answer.fault.status for answer in lane.answers] == [None, None, None, 507, None]
    store.close()
