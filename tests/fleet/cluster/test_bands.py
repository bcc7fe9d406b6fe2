"""Tests which band entries come from."""

from corosrv.fleet.cluster.queue_names import Band, BandTurns, band_of


def test_priorities_have_three_bands():
    assert [band_of(priority) for priority in range(1, 10)] == [Band.HIGH] * 3 + [Band.NORMAL] * 3 + [Band.LOW] * 3


def test_of_ten_entries_that_are_read_one_by_one_the_last_is_to_be_low():
    turns = BandTurns()
    wishes = []

    for _ in range(20):
        n_low = turns.n_low(1)
        wishes.append(n_low)
        turns.count([Band.LOW if n_low else Band.HIGH])

    assert wishes == ([0] * 9 + [1]) * 2


def test_of_many_entries_at_once_a_tenth_is_to_be_low():
    assert BandTurns().n_low(64) == 6


def test_a_low_entry_that_came_by_itself_counts():
    turns = BandTurns()
    turns.count([Band.HIGH] * 9)

    turns.count([Band.LOW])

    assert turns.n_low(9) == 0


def test_the_turn_stays_due_while_there_is_no_low_entry():
    turns = BandTurns()

    turns.count([Band.HIGH] * 30)

    assert turns.n_low(1) >= 1
