"""The headers of priority and time limit: one rule for all protocols."""

from collections.abc import Callable

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.terms import MAX_TIMEOUT_MS, parse_priority, parse_timeout


@pytest.mark.parametrize(("text", "priority"), [(None, 0), ("0", 0), ("1", 1), ("9", 9), (" 2 ", 2), ("007", 7)])
def test_a_priority_is_an_integer_from_0_to_9(text: str | None, priority: int):
    assert parse_priority(text) == priority


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("1", 0.001), (" 1500 ", 1.5), (str(MAX_TIMEOUT_MS), MAX_TIMEOUT_MS / 1000)]
)
def test_a_time_limit_is_an_integer_of_milliseconds(text: str | None, seconds: float | None):
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize(
    ("parse", "header", "text"),
    [
        *((parse_priority, "X-Priority", text) for text in ("10", "-1", "", "high", "1.0", "٣", "²", "1" * 5000)),
        *(
            (parse_timeout, "X-Request-Timeout-Ms", text)
            for text in ("0", "-5", "", " ", "+1", "1_0", "1e3", str(MAX_TIMEOUT_MS + 1), "9" * 400)
        ),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_text_that_is_no_number_in_range_is_refused_and_not_repeated_in_full(
    parse: Callable[[str], object], header: str, text: str
):
    with pytest.raises(Refused, match=header) as refused:
        parse(text)

    assert refused.value.param == header
    assert len(str(refused.value)) < 200
