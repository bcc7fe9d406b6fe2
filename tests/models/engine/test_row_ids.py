"""Private ids of embedding rows: the same for the same content of a caller, and never given to another."""

from typing import Any

import pytest

from corosrv.contracts.jobs import Rows
from corosrv.models.engine.tasks import FIRST_ID, RowIds


def rows(content: int, n: int = 2) -> Rows:
    return Rows.of_data(bytes([content]) * 8 * n, width=2)


@pytest.fixture
def ids() -> RowIds:
    return RowIds(limit=2)


def test_equal_rows_of_a_caller_have_the_same_id(ids: RowIds):
    assert ids.of_rows(rows(1), "a") == ids.of_rows(rows(1), "a") == FIRST_ID


@pytest.mark.parametrize(("other", "caller"), [(rows(2), "a"), (rows(1, n=3), "a"), (rows(1), "b")])
def test_another_content_length_or_caller_has_another_id(ids: RowIds, other: Rows, caller: str):
    assert ids.of_rows(rows(1), "a") != ids.of_rows(other, caller)


def test_the_same_numbers_read_in_another_way_have_another_id():
    ids = RowIds()
    readings: list[dict[str, Any]] = [
        {},
        {"is_non_causal": True},
        {"n_positions": 2, "positions": bytes(32)},
        {"n_positions": 1, "positions": bytes(32)},
        {"n_positions": 2, "positions": bytes(31) + b"\x01"},
    ]
    contents = [Rows.of_data(rows(1).data, 2, **reading) for reading in readings]

    first = [ids.of_rows(content, "a") for content in contents]

    assert len(set(first)) == len(readings)
    assert [ids.of_rows(content, "a") for content in contents] == first


def test_a_forgotten_content_gets_a_new_id_and_no_other_ones(ids: RowIds):
    first = [ids.of_rows(rows(content), "a") for content in (1, 2, 3)]

    again = ids.of_rows(rows(1), "a")

    assert again not in first


def test_the_content_used_last_is_kept(ids: RowIds):
    first = ids.of_rows(rows(1), "a")
    ids.of_rows(rows(2), "a")
    ids.of_rows(rows(1), "a")
    ids.of_rows(rows(3), "a")

    assert ids.of_rows(rows(1), "a") == first


def test_no_id_is_given_twice_when_none_is_left():
    ids = RowIds(limit=1, last_id=FIRST_ID - 1)
    given_out = [ids.of_rows(rows(content), "a") for content in range(4)]

    assert given_out == [FIRST_ID, FIRST_ID - 1, None, None]
