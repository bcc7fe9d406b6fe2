"""Short forms of the kinds of overload, with bounds that also hold on a machine that has other things to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load import overload
from tests.load.overload import Figure
from tests.serve.conftest import cache  # noqa: F401
from tests.serve.server import Server, servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:  # noqa: F811
    with servers(tmp_path_factory.mktemp("overload"), cache) as started:
        yield overload.start(started)


def values(figures: list[Figure]) -> list[float]:
    """Returns the values of figures, and prints them for whoever reads of a failure."""
    print(*figures, sep="\n")
    return [figure.value for figure in figures]


def test_one_client_waits_little_beside_forty_of_another_key(server: Server):
    median, _ = values(overload.beside_a_crowd(server, 3))

    assert median < 1000 * 40 / 4 * overload.SHARED_SERVICE / 3  # a third of what it would wait as one of them


def test_urgent_calls_are_answered_although_batch_calls_fill_the_queue(server: Server):
    in_time, of_capacity, told_when = values(overload.full_queue(server, 3))

    assert in_time >= 60
    assert of_capacity >= 50
    assert told_when == 100


def test_half_of_the_capacity_is_answered_in_time_at_ten_times_as_many_calls(server: Server):
    (of_capacity,) = values(overload.past_capacity(server, 3, 10))

    assert of_capacity >= 50


def test_handlers_that_wait_for_each_other_all_end(server: Server):
    _, seconds = values(overload.circles(server, 1))

    assert seconds < overload.PATIENCE / 2


def test_a_handler_that_kills_its_process_takes_no_other_away(server: Server):
    answered, _, refused = values(overload.beside_a_killer(server, 4, 0.5))

    assert answered >= 80
    assert refused >= 50
