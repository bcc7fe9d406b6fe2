"""What clients that were refused are told."""

import pytest

from corosrv.base.errors import LONGEST_TOLD, retry_seconds


@pytest.mark.parametrize(("wait", "least", "most"), [(0, 1, 1), (0.3, 1, 1), (4.3, 5, 5), (20, 21, 22), (99, 100, 109)])
def test_a_wait_is_told_in_whole_seconds_and_up_to_a_tenth_more(wait: float, least: int, most: int) -> None:
    told = {retry_seconds(wait) for _ in range(200)}

    assert least <= min(told)
    assert max(told) <= most
    assert len(told) > 1 or least == most


@pytest.mark.parametrize("wait", [120, 1e9, float("inf")])
def test_nobody_is_sent_away_for_longer_than_two_minutes(wait: float) -> None:
    assert retry_seconds(wait) == LONGEST_TOLD
