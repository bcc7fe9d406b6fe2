"""The store of objects: keys, callers, times to live, quotas and what goes first."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import ObjectExpired, ObjectNotFound, ObjectTooLarge, Refused, StoreFull
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.workers.objects import MAX_TTL, MIN_FILE, ObjectContent, ObjectStore
from tests.support.descriptors import n_descriptors

NOW = 1_000_000.0


def put(store: ObjectStore, data: bytes = b"value", now: float = NOW, **options) -> ObjRef:
    return store.create(ObjectContent.copy([data]), hashlib.sha256(data).hexdigest(), now, **options)


def read(store: ObjectStore, object_id: str, now: float = NOW, caller: str = "") -> bytes:
    return bytes(store.get(object_id, now, caller).content.view())


@pytest.mark.parametrize("size", [0, 5, MIN_FILE - 1, MIN_FILE, MIN_FILE + 1])
def test_what_was_stored_is_read(size: int):
    store, data = ObjectStore(), os.urandom(size)

    ref = put(store, data)

    assert read(store, ref.id) == data
    assert (ref.size, ref.sha256) == (size, hashlib.sha256(data).hexdigest())
    store.close()


def test_a_view_outlives_its_object():
    store = ObjectStore()
    ref = put(store, bytes(MIN_FILE))
    view = store.get(ref.id, NOW).content.view()

    store.delete(ref.id, NOW)

    assert bytes(view) == bytes(MIN_FILE)


def test_a_key_finds_what_was_stored_last_and_earlier_references_stay_valid():
    store = ObjectStore()
    first, second = put(store, b"1", key="k"), put(store, b"2", key="k")

    found = store.lookup("k", NOW)

    assert found == second
    assert (read(store, first.id), read(store, second.id)) == (b"1", b"2")


def test_deleting_the_earlier_object_of_a_key_leaves_the_later_one():
    store = ObjectStore()
    first, second = put(store, b"1", key="k"), put(store, b"2", key="k")

    store.delete(first.id, NOW)

    assert store.lookup("k", NOW) == second


def test_another_caller_finds_neither_key_nor_object():
    store = ObjectStore()
    ref = put(store, key="k", caller="a")

    assert store.lookup("k", NOW, "b") is None
    with pytest.raises(ObjectNotFound):
        store.get(ref.id, NOW, "b")
    with pytest.raises(ObjectNotFound):
        store.delete(ref.id, NOW, "")


def test_an_object_ends_with_its_time_before_anybody_sweeps():
    store = ObjectStore()
    ref = put(store, key="k", ttl_s=10)

    assert read(store, ref.id, NOW + 9.9) == b"value"
    assert store.lookup("k", NOW + 10) is None
    with pytest.raises(ObjectExpired):
        store.get(ref.id, NOW + 10)


def test_an_object_that_was_swept_is_told_as_expired_to_its_caller_alone():
    store = ObjectStore()
    ref = put(store, ttl_s=10, caller="a")

    store.sweep(NOW + 11)

    with pytest.raises(ObjectExpired):
        store.get(ref.id, NOW + 11, "a")
    with pytest.raises(ObjectNotFound):
        store.get(ref.id, NOW + 11, "b")
    assert (store.stats.n_objects, store.stats.n_bytes, store.stats.n_expired) == (0, 0, 1)


def test_the_least_recently_read_goes_first():
    store = ObjectStore(max_bytes=30)
    first, second, third = (put(store, bytes(10)) for _ in range(3))
    read(store, first.id)

    put(store, bytes(10))

    assert read(store, first.id)
    assert read(store, third.id)
    with pytest.raises(ObjectExpired):
        store.get(second.id, NOW)
    assert store.stats.n_evicted == 1


@pytest.mark.parametrize("limits", [{"max_objects": 10}, {"max_bytes": 10}], ids=["number", "bytes"])
def test_objects_of_one_caller_push_out_none_of_who_holds_less(limits: dict[str, int]):
    store = ObjectStore(**limits)
    kept = put(store, b"1", caller="a")
    for _ in range(50):
        put(store, b"1", caller="b")
    assert read(store, kept.id, caller="a") == b"1"

    more = [put(store, b"1", caller="a") for _ in range(20)]

    assert store.stats.n_objects == 10
    assert [ref for ref in store.refs() if ref in more] == more[-5:]


def test_who_holds_most_and_uses_all_of_it_gets_no_room_of_others():
    store = ObjectStore(max_bytes=10)
    other, used = put(store, bytes(4), caller="a"), put(store, bytes(6), caller="b")

    with store.pinned(used.id, NOW, "b"), pytest.raises(StoreFull):
        put(store, bytes(1), caller="b")

    assert read(store, other.id, caller="a") == bytes(4)


def test_what_is_expired_goes_before_what_is_not():
    store = ObjectStore(max_bytes=20)
    lasting, passing = put(store, bytes(10)), put(store, bytes(10), ttl_s=1)

    put(store, bytes(10), now=NOW + 2)

    assert read(store, lasting.id, NOW + 2)
    assert store.stats.n_evicted == 0
    with pytest.raises(ObjectExpired):
        store.get(passing.id, NOW + 2)


def test_an_object_in_use_is_neither_evicted_nor_swept():
    store = ObjectStore(max_bytes=10)
    ref = put(store, bytes(10), ttl_s=1)

    with store.pinned(ref.id, NOW):
        with pytest.raises(StoreFull):
            put(store, bytes(10))
        store.sweep(NOW + 2)
        assert store.stats.n_objects == 1

    put(store, bytes(10), now=NOW + 2)


@pytest.mark.own_process
def test_a_refused_object_leaves_no_descriptor_and_no_bytes():
    store = ObjectStore(max_bytes=MIN_FILE * 2, max_object=MIN_FILE)
    before = n_descriptors("memfd:")

    with pytest.raises(ObjectTooLarge, match="where 65536 are allowed"):
        put(store, bytes(MIN_FILE + 1))

    assert n_descriptors("memfd:") <= before
    assert store.stats.n_bytes == 0


def test_the_limits_are_64_mib_for_an_object_and_1_gib_for_all():
    store = ObjectStore()

    assert (store.max_object, store.stats.limit) == (64 << 20, 1 << 30)


@pytest.mark.parametrize("key", ["a/b", "ü", "a b", "x" * 201, "..\n", "a\0"])
def test_a_key_with_other_characters_is_refused(key: str):
    with pytest.raises(Refused, match="key has 1 to 200"):
        put(ObjectStore(), key=key)


@pytest.mark.parametrize("ttl_s", [0, -1, 1e9, float("nan")])
def test_a_time_to_live_out_of_range_is_refused(ttl_s: float):
    with pytest.raises(Refused, match="ttl_s"):
        put(ObjectStore(), ttl_s=ttl_s)


@pytest.mark.parametrize("content_type", ["text/plain\r\nX: y", "text/ü", "x" * 201])
def test_a_content_type_that_no_header_takes_is_refused(content_type: str):
    with pytest.raises(Refused, match="content_type"):
        put(ObjectStore(), content_type=content_type)


def test_what_is_just_within_the_limits_is_stored():
    store = ObjectStore(max_bytes=10, max_object=10)

    ref = put(store, bytes(10), ttl_s=MAX_TTL, content_type="x" * 200, key="k" * 200)

    assert read(store, ref.id, NOW + MAX_TTL - 1) == bytes(10)
    store.sweep(NOW + MAX_TTL)
    assert store.stats.n_objects == 0


def test_what_was_deleted_was_not_there_and_what_expired_was():
    store = ObjectStore()
    deleted, expired = put(store), put(store, ttl_s=1)

    store.delete(deleted.id, NOW)
    store.sweep(NOW + 1)

    with pytest.raises(ObjectNotFound):
        store.get(deleted.id, NOW + 1)
    with pytest.raises(ObjectExpired):
        store.get(expired.id, NOW + 1)


def test_little_is_kept_of_objects_that_are_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corosrv.workers.objects._REMEMBERED", 2)
    store = ObjectStore()
    refs = [put(store, key=f"k{number}", ttl_s=1) for number in range(3)]

    store.sweep(NOW + 1)

    with pytest.raises(ObjectNotFound):
        store.get(refs[0].id, NOW + 1)
    with pytest.raises(ObjectExpired):
        store.get(refs[1].id, NOW + 1)
    assert not store._by_key


@pytest.mark.own_process
def test_a_closed_store_leaves_no_descriptor():
    before = n_descriptors("memfd:")
    store = ObjectStore()
    for _ in range(5):
        put(store, bytes(MIN_FILE))

    store.close()

    assert n_descriptors("memfd:") <= before


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["put", "delete", "sweep"]), st.integers(0, 40), st.integers(1, 5)), max_size=60)
)
def test_the_bytes_counted_are_those_of_the_objects(steps):
    store, now = ObjectStore(max_bytes=100), NOW
    for what, size, seconds in steps:
        now += seconds
        refs = store.refs()
        if what == "put":
            put(store, bytes(size), now, ttl_s=20, key="k" if size % 2 else "")
        elif what == "delete" and refs:
            with suppress(ObjectExpired):
                store.delete(refs[0].id, now)
        else:
            store.sweep(now)

        assert store.stats.n_bytes == sum(ref.size for ref in store.refs()) <= 100


def test_objects_without_bytes_are_bounded_by_their_number():
    store = ObjectStore(max_objects=2)
    first, second = put(store, b""), put(store, b"")
    store.get(first.id, NOW)

    third = put(store, b"")

    assert [ref.id for ref in store.refs()] == [first.id, third.id]
    with pytest.raises(ObjectExpired):
        store.get(second.id, NOW)


def test_no_object_goes_for_another_while_all_are_in_use():
    store = ObjectStore(max_objects=1)
    ref = put(store)

    with store.pinned(ref.id, NOW), pytest.raises(StoreFull):
        put(store, b"")

    assert read(store, ref.id) == b"value"


def test_the_end_of_an_object_is_told_to_the_millisecond():
    before = time.time()

    ref = put(ObjectStore(), ttl_s=0.5)

    assert before + 0.499 <= ref.expires_ms / 1000 <= time.time() + 0.501
