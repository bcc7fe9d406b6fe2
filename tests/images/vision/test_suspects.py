"""Tests which images are refused because an encoder died of them."""

from corosrv.images.vision.supervisor import MAX_SUSPECTS, MEMORY, CrashSuspects


def test_an_image_is_refused_after_its_second_crash():
    suspects = CrashSuspects()

    suspects.add("a", 0.0)
    after_one = suspects.is_refused("a", 1.0)
    suspects.add("a", 2.0)

    assert not after_one
    assert suspects.is_refused("a", 3.0)
    assert not suspects.is_refused("b", 3.0)


def test_a_refusal_ends_ten_minutes_after_the_last_crash():
    suspects = CrashSuspects()
    suspects.add("a", 0.0)
    suspects.add("a", 5.0)

    assert suspects.is_refused("a", 5.0 + MEMORY - 1)
    assert not suspects.is_refused("a", 5.0 + MEMORY)


def test_crashes_that_lie_far_apart_do_not_add_up():
    suspects = CrashSuspects()

    suspects.add("a", 0.0)
    suspects.add("a", MEMORY)

    assert not suspects.is_refused("a", MEMORY)


def test_the_oldest_suspects_are_forgotten():
    suspects = CrashSuspects()
    for _ in range(2):
        suspects.add("first", 0.0)

    for number in range(MAX_SUSPECTS - 1):
        suspects.add(str(number), 1.0)
    while_all_fit = suspects.is_refused("first", 1.0)
    suspects.add("last", 1.0)

    assert while_all_fit
    assert not suspects.is_refused("first", 1.0)


def test_a_suspect_that_crashed_again_is_not_the_oldest():
    suspects = CrashSuspects()
    suspects.add("first", 0.0)
    for number in range(MAX_SUSPECTS - 1):
        suspects.add(str(number), 1.0)

    suspects.add("first", 2.0)
    suspects.add("last", 3.0)

    assert suspects.is_refused("first", 3.0)
