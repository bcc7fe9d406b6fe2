"""The command that kills and stops encoder processes, with few items."""

import pytest

from tests.load.transfers import kill_encoders, kill_language_process, stop_encoder, time_a_timer, tiny_files


@pytest.fixture(scope="module")
def files():
    with tiny_files() as files:
        yield files


@pytest.mark.own_process
def test_killed_encoders_change_no_row_and_no_text_and_leave_nothing(files):
    kill_encoders(files, 24, 2).check()


def test_an_encoder_does_not_outlive_its_language_process(files):
    kill_language_process(files)


def test_a_stopped_encoder_is_killed_when_it_does_not_answer_and_not_before(files):
    stop_encoder(files, 0.5).check()


def test_a_timer_goes_on_beside_many_greenlets_that_wait_for_transfers(files):
    assert time_a_timer(files, 200) < 0.5
