"""Restarts of an encoder, and whether it is worth waiting for."""

from corosrv.images.vision.supervisor import RECOVERY, StabilityRecord


def record_of(*restarts: float) -> StabilityRecord:
    record = StabilityRecord()
    for time in restarts:
        record.note_death()
        record.note_restart(time)
    return record


def test_three_restarts_within_a_minute_are_too_many():
    assert not record_of(0.0, 30.0).is_unstable(30.0)
    assert record_of(0.0, 30.0, 60.0).is_unstable(60.0)
    assert not record_of(0.0, 30.0, 61.0).is_unstable(61.0)


def test_an_encoder_that_serves_for_a_minute_is_trusted_again():
    record = record_of(0.0, 1.0, 2.0)
    record.note_ready(10.0)

    assert record.is_unstable(10.0 + RECOVERY - 1)
    assert not record.is_unstable(10.0 + RECOVERY)


def test_a_death_begins_the_minute_anew():
    record = record_of(0.0, 1.0, 2.0)
    record.note_ready(10.0)
    record.note_death()
    record.note_restart(50.0)
    record.note_ready(51.0)

    assert record.is_unstable(10.0 + RECOVERY)
    assert not record.is_unstable(51.0 + RECOVERY)


def test_an_encoder_that_has_died_does_not_recover_by_waiting():
    record = record_of(0.0, 1.0, 2.0)
    record.note_ready(10.0)

    record.note_death()

    assert record.is_unstable(10.0 + RECOVERY)


def test_an_encoder_that_does_not_serve_is_not_trusted_however_long():
    assert record_of(0.0, 1.0, 2.0).is_unstable(10_000.0)
