"""Tests which of several deliveries of one call has its client."""

from corosrv.fleet.cluster.shared_call import ReplyFate, ReplyOrder


def test_the_first_delivery_that_sends_is_followed_and_others_are_dropped():
    order = ReplyOrder()

    fates = [order.chunk(2), order.chunk(1), order.chunk(2), order.end(2)]

    assert fates == [ReplyFate.TAKE, ReplyFate.DROP, ReplyFate.TAKE, ReplyFate.TAKE]


def test_an_end_before_any_piece_is_taken_from_whichever_delivery():
    assert ReplyOrder().end(3) is ReplyFate.TAKE


def test_an_end_of_another_delivery_in_mid_stream_is_a_loss_and_no_splice():
    order = ReplyOrder()
    order.chunk(1)

    assert order.end(2) is ReplyFate.LOST


def test_it_has_begun_with_its_first_piece():
    order = ReplyOrder()
    had_begun = order.has_begun

    order.chunk(1)

    assert (had_begun, order.has_begun) == (False, True)
