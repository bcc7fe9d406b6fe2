"""Records of calls under idempotency keys."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Conflict, KeyReused
from corosrv.contracts.idempotency import LIFETIME, MAX_BYTES, RECORD_BYTES, KeyClaim, KeyedRecords

Records = KeyedRecords[str]


def claim(records: Records, key: str = "k", digest: bytes = b"d", now: float = 0, caller: str = "") -> KeyClaim[str]:
    begun = records.begin(caller, key, digest, now)
    assert isinstance(begun, KeyClaim)
    return begun


def answer(records: Records, key: str = "k", now: float = 0, n_bytes: int = 0, caller: str = "") -> bool:
    first = claim(records, key, now=now, caller=caller)
    first.grow(n_bytes)
    return first.finish(f"answer to {key}", now)


def is_kept(records: Records, key: str, now: float = 0, caller: str = "") -> bool:
    begun = records.begin(caller, key, b"d", now)
    if isinstance(begun, KeyClaim):
        begun.drop()
    return not isinstance(begun, KeyClaim)


def test_the_answer_is_given_again_and_again():
    records = Records()
    answer(records)

    assert [records.begin("", "k", b"d", 1) for _ in range(3)] == ["answer to k"] * 3


def test_while_the_first_call_runs_others_are_told_when_to_come_back():
    records = Records()
    claim(records)

    with pytest.raises(Conflict) as refusal:
        records.begin("", "k", b"d", 0)

    assert refusal.value.retry_after == 1
    assert refusal.value.code == "still_running"


def test_another_request_under_the_key_is_refused_while_the_first_runs_and_later():
    records = Records()
    first = claim(records)

    with pytest.raises(KeyReused):
        records.begin("", "k", b"other", 0)
    first.finish("answer", 0)
    with pytest.raises(KeyReused):
        records.begin("", "k", b"other", 0)


def test_a_call_that_was_dropped_leaves_its_key_free():
    records = Records()
    claim(records).drop()

    assert isinstance(records.begin("", "k", b"other", 0), KeyClaim)


def test_a_claim_that_has_ended_changes_nothing_of_the_next():
    records = Records()
    ended = claim(records)
    ended.drop()
    claim(records)

    ended.drop()
    assert not ended.finish("late", 0)

    with pytest.raises(Conflict):
        records.begin("", "k", b"d", 0)


def test_an_answer_that_is_kept_cannot_be_dropped():
    records = Records()
    first = claim(records)
    first.finish("answer", 0)

    first.drop()

    assert records.begin("", "k", b"d", 0) == "answer"


def test_an_answer_is_kept_for_a_day_after_its_call_has_ended():
    records = Records()
    slow = claim(records, "slow", now=0)
    answer(records, "k", now=100)
    slow.finish("late", 200)

    assert is_kept(records, "k", 99 + LIFETIME)
    assert not is_kept(records, "k", 100 + LIFETIME)
    assert is_kept(records, "slow", 199 + LIFETIME)
    assert not is_kept(records, "slow", 200 + LIFETIME)
    assert records.n_bytes == 0


def test_the_oldest_answers_make_room():
    records = Records(max_bytes=3 * (RECORD_BYTES + 100))
    for key in "1234":
        answer(records, key, n_bytes=100)

    assert [is_kept(records, key) for key in "234"] == [True] * 3
    assert records.n_records == 3
    assert not is_kept(records, "1")


def test_an_answer_larger_than_all_room_is_not_kept_and_pushes_out_nothing():
    records = Records(max_bytes=5 * RECORD_BYTES)
    answer(records, "small")

    assert not answer(records, "huge", n_bytes=5 * RECORD_BYTES)

    assert is_kept(records, "small")
    assert not is_kept(records, "huge")
    assert records.n_bytes == RECORD_BYTES


def test_answers_in_the_making_count_and_the_one_too_much_is_given_up():
    records = Records(max_bytes=10 * RECORD_BYTES)
    claims = [claim(records, key) for key in "123"]

    grown = [one.grow(3 * RECORD_BYTES) for one in claims]

    assert grown == [True, True, False]
    assert records.n_bytes == 8 * RECORD_BYTES
    assert not claims[2].grow(1)
    assert not claims[2].finish("answer", 0)
    assert claims[0].finish("answer", 0)


def test_a_hundred_thousand_keys_take_no_more_than_there_is_room():
    records = Records()
    for number in range(100_000):
        answer(records, str(number))

    assert records.n_records == MAX_BYTES // RECORD_BYTES
    assert records.n_bytes <= MAX_BYTES


def test_calls_that_run_are_not_forgotten():
    records = Records(max_bytes=2 * RECORD_BYTES)
    claim(records, "running")
    for key in "123":
        answer(records, key)

    with pytest.raises(Conflict):
        records.begin("", "running", b"d", 2 * LIFETIME)


def test_callers_have_keys_of_their_own_and_room_of_their_own():
    records = Records(max_bytes=4 * RECORD_BYTES, n_callers=2)
    answer(records, "k", caller="x")

    for key in "123456":
        answer(records, key, caller="y")

    assert records.n_records == 3
    assert is_kept(records, "k", caller="x")
    assert not is_kept(records, "k", caller="y")
