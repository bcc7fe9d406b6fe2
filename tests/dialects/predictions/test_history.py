"""Events, kept and numbered, and the cursors that read them."""

import pytest

from corosrv.dialects.predictions.files import TURN, LargeJson
from corosrv.dialects.predictions.prediction import LIVE, Event, History
from corosrv.web.kept.event_log import PIECE, EventPiece, Gap


def filled(capacity: int, n: int) -> History:
    history = History(capacity)
    for number in range(n):
        history.append("output", {"index": number})
    return history


def numbers(events: list[Event]) -> list[int | None]:
    return [event.number for event in events]


def test_an_event_is_one_line_of_json_with_its_number_and_name():
    history = History(1)
    history.append("log", {"data": "a\nb\u2028"})

    (event,) = history.cursor().take()

    assert event.wire == 'id: 1\nevent: log\ndata: {"data":"a\\nb\u2028"}\n\n'.encode()


def test_an_event_outside_the_history_has_no_number():
    assert Event("error", {"skipped": 1}).wire == b'event: error\ndata: {"skipped":1}\n\n'


def test_cursors_read_all_once_and_do_not_know_each_other():
    history = filled(10, 2)
    one, other = history.cursor(), history.cursor()
    assert numbers(one.take()) == [1, 2]

    history.append("output", {})

    assert numbers(one.take()) == [3]
    assert numbers(other.take()) == [1, 2, 3]
    assert one.take() == []


@pytest.mark.parametrize(("after", "read"), [(0, [1, 2, 3]), (1, [2, 3]), (3, []), (99, [])])
def test_a_cursor_starts_behind_the_event_that_its_reader_has(after, read):
    assert numbers(filled(10, 3).cursor(after).take()) == read


def large_event(history: History) -> bytes:
    """Appends an event whose data is encoded already, in two pieces; returns what is to be read of it."""
    halves = b'"' + b"a" * TURN, b"a" * TURN + b'"'
    history.append("output", {"chunk": LargeJson(halves)})
    return b'event: output\ndata: {"chunk":' + b"".join(halves) + b"}\n\n"


def test_a_large_event_is_read_in_its_pieces():
    history = filled(10, 1)
    cursor = history.cursor(1)
    wire = large_event(history)
    history.append("completed", {}, is_last=True)

    pieces = []
    while isinstance((piece := cursor.take()[0]), EventPiece):
        pieces.append(piece.wire)
        assert not cursor.is_at_end

    assert b"".join(pieces) == b"id: 2\n" + wire
    assert max(map(len, pieces)) < 2 * TURN
    assert piece.name == "completed"
    assert cursor.is_at_end


def test_an_event_that_was_begun_is_read_to_its_end_though_it_is_kept_no_longer():
    history = filled(2, 1)
    cursor = history.cursor(1)
    wire = large_event(history)
    beginning = cursor.take()[0].wire

    for _ in range(3):
        history.append("output", {})
    rest = b""
    while not rest.endswith(b"\n\n"):
        rest += cursor.take()[0].wire

    assert beginning + rest == b"id: 2\n" + wire
    with pytest.raises(Gap):
        cursor.take()


def test_a_cursor_that_is_ahead_of_all_reads_what_comes():
    history = filled(10, 3)
    cursor = history.cursor(99)

    history.append("output", {})

    assert numbers(cursor.take()) == [4]


def test_a_cursor_whose_next_event_is_gone_is_told_how_many_are():
    history = filled(4, 10)

    with pytest.raises(Gap) as gap:
        history.cursor().take()
    assert gap.value.n_skipped == 6


@pytest.mark.parametrize(("after", "is_gone"), [(5, True), (6, False), (7, False)])
def test_only_a_missing_next_event_is_a_gap(after, is_gone):
    cursor = filled(4, 10).cursor(after)

    if is_gone:
        with pytest.raises(Gap):
            cursor.take()
    else:
        assert numbers(cursor.take()) == list(range(after + 1, 11))


def test_a_reader_that_falls_behind_meets_the_gap():
    history = filled(4, 2)
    cursor = history.cursor()
    assert numbers(cursor.take()) == [1, 2]

    for _ in range(6):
        history.append("output", {})

    with pytest.raises(Gap) as gap:
        cursor.take()
    assert gap.value.n_skipped == 2


def test_a_piece_is_bounded_but_never_empty():
    history = History(10)
    for _ in range(3):
        history.append("output", {"chunk": "x" * PIECE})
    cursor = history.cursor()

    assert [len(cursor.take()) for _ in range(4)] == [1, 1, 1, 0]


def test_a_cursor_is_at_its_end_when_the_last_event_was_taken():
    history = filled(10, 1)
    cursor = history.cursor()
    cursor.take()
    assert not cursor.is_at_end

    history.append("completed", {}, is_last=True)

    assert not cursor.is_at_end
    cursor.take()
    assert cursor.is_at_end


def test_whoever_is_parked_is_woken_once():
    history = History(10)
    woken: list[int] = []

    def wake() -> None:
        woken.append(history.n_events)

    history.park(wake)
    history.append("output", {})
    history.append("output", {})
    history.park(wake)
    history.unpark(wake)
    history.append("output", {})

    assert woken == [1]


def test_readers_are_counted_until_they_close():
    history = History(10)
    one, _other = history.cursor(), history.cursor()

    one.close()
    one.close()

    assert history.n_readers == 1


def test_without_a_history_readers_get_what_comes_from_now_on():
    history = filled(0, 3)
    early = history.cursor()
    history.append("output", {})
    late = history.cursor(0)

    history.append("output", {})

    assert numbers(early.take()) == [4, 5]
    assert numbers(late.take()) == [5]


def test_without_a_history_and_readers_nothing_is_kept_but_the_end():
    history = filled(0, 3)
    history.append("completed", {}, is_last=True)

    assert history.n_lost == 3
    assert numbers(history.cursor().take()) == [4]


def test_without_a_history_nothing_is_kept_of_readers_that_left():
    history = History(0)
    cursor = history.cursor()
    history.append("output", {})
    cursor.close()

    history.append("output", {})

    assert history.n_lost == 2


def test_without_a_history_a_reader_may_still_fall_behind():
    history = History(0)
    cursor = history.cursor()

    for _ in range(LIVE + 1):
        history.append("output", {})

    with pytest.raises(Gap):
        cursor.take()
