"""The order in which an encoder works: which image it is at, and when it has taken too long."""

import math

from corosrv.images.vision.turns import EncodeOrder

LIMIT = 10.0


def order_of(*images: str) -> EncodeOrder:
    """The order after these images were sent, all at once."""
    order = EncodeOrder(LIMIT)
    for tid, image in enumerate(images, 1):
        order.open(tid, image, 0.0)
    return order


def test_an_encoder_that_was_sent_nothing_is_not_waited_for():
    order = order_of()

    assert (order.current, order.due_at) == (None, math.inf)


def test_the_first_that_was_sent_is_the_one_at_hand():
    order = order_of("a", "b")

    assert order.current == "a"
    assert order.due_at == LIMIT


def test_a_report_begins_the_time_of_the_next():
    order = order_of("a", "b")

    order.report(1, 4.0)

    assert order.current == "b"
    assert order.due_at == 4.0 + LIMIT


def test_a_report_ends_all_that_were_sent_before():
    order = order_of("a", "b", "c")

    order.report(2, 4.0)

    assert order.current == "c"


def test_an_image_that_is_sent_later_does_not_move_the_time_of_the_first():
    order = order_of("a")

    order.open(2, "b", 5.0)

    assert order.due_at == LIMIT


def test_a_cancelled_image_that_may_be_running_is_still_the_one_at_hand():
    order = order_of("a", "b")

    order.cancel(1, 3.0)

    assert order.current == "a"
    assert order.due_at == 3.0 + 2 * LIMIT  # the rest of `a`, which nobody interrupts, and all of `b`


def test_a_cancelled_image_that_waits_is_forgotten():
    order = order_of("a", "b", "c")

    order.cancel(2, 3.0)
    due_at = order.due_at
    order.report(1, 4.0)

    assert order.current == "c"
    assert due_at == LIMIT  # the time of the first goes on


def test_nobody_is_late_while_only_cancelled_images_are_there():
    order = order_of("a")

    order.cancel(1, 3.0)

    assert order.current == "a"
    assert order.due_at == math.inf


def test_nothing_is_due_when_all_was_reported_or_forgotten():
    reported, forgotten = order_of("a"), order_of("a", "b")

    reported.report(1, 1.0)
    forgotten.clear()

    assert (reported.current, reported.due_at) == (None, math.inf)
    assert (forgotten.current, forgotten.due_at) == (None, math.inf)


def test_reports_of_what_is_not_known_change_nothing():
    order = order_of("a")

    order.report(7, 5.0)
    order.cancel(7, 5.0)

    assert order.current == "a"
    assert order.due_at == LIMIT
