"""The terms of a call, from headers and parameters."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Refused
from corosrv.dialects.kserve.parameters import FrontParameters, call_terms

NOW = 1000.0


def terms(headers: dict[str, str] | None = None, session: object = "", **front):
    return call_terms((headers or {}).get, FrontParameters(**front), NOW, session=session)


@pytest.mark.parametrize(
    ("timeout_us", "header", "deadline"),
    [
        (None, None, None),
        (2_000_000, None, 1002.0),
        (None, "1500", 1001.5),
        (2_000_000, "1500", 1001.5),
        (1_000_000, "1500", 1001.0),
    ],
)
def test_the_earlier_limit_holds(timeout_us: int | None, header: str | None, deadline: float | None):
    headers = {} if header is None else {"X-Request-Timeout-Ms": header}

    assert terms(headers, timeout_us=timeout_us).deadline == deadline


@pytest.mark.parametrize(
    ("parameter", "header", "priority"),
    [(0, None, 5), (0, "0", 5), (3, None, 3), (0, "2", 2), (3, "2", 3)],
)
def test_a_parameters_priority_goes_before_a_headers(parameter: int, header: str | None, priority: int):
    headers = {} if header is None else {"X-Priority": header}

    assert terms(headers, priority=parameter).priority == priority


@pytest.mark.parametrize(
    ("header", "sequence_id", "session"), [(None, "", ""), (None, 7, "7"), ("s", 7, "s"), ("x" * 999, "", "x" * 200)]
)
def test_a_session_comes_from_the_header_or_the_sequence(header: str | None, sequence_id: object, session: str):
    headers = {} if header is None else {"X-Session-Id": header}

    assert terms(headers, session=sequence_id).session == session


@pytest.mark.parametrize("header", ["X-Priority", "X-Request-Timeout-Ms"])
def test_a_header_that_is_no_number_is_refused_by_name(header: str):
    with pytest.raises(Refused, match=header):
        terms({header: "soon"})


def test_an_idempotency_key_comes_from_its_header_and_has_a_limit():
    assert terms({"Idempotency-Key": "k"}).idempotency_key == "k"
    assert terms().idempotency_key == ""
    with pytest.raises(Refused, match="255 characters"):
        terms({"Idempotency-Key": "k" * 256})
