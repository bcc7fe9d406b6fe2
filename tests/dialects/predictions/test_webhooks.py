"""Which events go out, in which order, how often, and when again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import gevent
import pytest
from standardwebhooks import Webhook

from corosrv.base.outgoing import WebhookSigner
from corosrv.dialects.predictions import webhooks
from corosrv.dialects.predictions.prediction import Change, Prediction, Status
from corosrv.dialects.predictions.webhooks import Outcome, WebhookPlan, Webhooks, delay
from tests.support.receiver import Receiver, closed_url

START, OUTPUT, LOGS, COMPLETED = Change
ALL = frozenset(Change)
NOW = datetime.now(timezone.utc)
INTERVAL = 0.1
TIMEOUT = 30


def plan(*changes: Change, events: frozenset[Change] = ALL) -> WebhookPlan:
    made = WebhookPlan(events, 10.0)
    for change in changes:
        made.add(change)
    return made


# What is due


def test_start_and_end_go_at_once_and_in_their_order():
    made = plan(START, OUTPUT, COMPLETED)

    assert [made.next_event(0.0), made.next_event(0.0), made.next_event(0.0)] == [START, COMPLETED, None]
    assert made.is_over


def test_the_first_output_goes_at_once_and_the_next_ones_when_the_window_ends():
    made = plan(OUTPUT)
    assert made.next_event(100.0) is OUTPUT
    assert made.next_event(100.0) is None

    made.add(OUTPUT)
    made.add(OUTPUT)

    assert made.next_event(104.0) == 6.0
    assert made.next_event(110.0) is OUTPUT
    assert made.next_event(110.0) is None


def test_output_and_logs_share_a_window_and_are_merged():
    made = plan(LOGS)
    assert made.next_event(0.0) is LOGS
    made.add(LOGS)
    made.add(OUTPUT)
    made.add(LOGS)

    assert made.next_event(1.0) == 9.0
    assert made.next_event(10.0) is OUTPUT
    assert made.next_event(20.0) is None


def test_the_end_takes_the_place_of_what_waits():
    made = plan(OUTPUT)
    made.next_event(0.0)
    made.add(LOGS)

    made.add(COMPLETED)

    assert made.next_event(1.0) is COMPLETED
    assert made.is_over


def test_the_last_output_is_sent_where_the_end_is_not_wanted():
    made = plan(OUTPUT, events=frozenset({OUTPUT}))
    made.next_event(0.0)
    made.add(OUTPUT)
    made.add(COMPLETED)

    assert made.next_event(1.0) == 9.0
    assert not made.is_over
    assert made.next_event(10.0) is OUTPUT
    assert made.is_over


def test_only_wanted_events_are_due():
    made = plan(START, OUTPUT, LOGS, COMPLETED, events=frozenset({LOGS}))

    assert made.next_event(0.0) is LOGS
    assert made.is_over


def test_a_flood_wakes_the_sender_once():
    made = plan()

    assert [made.add(LOGS) for _ in range(3)] == [True, False, False]


def test_delays_double_up_to_a_hundred_seconds_and_end():
    failure = Outcome(503)

    delays = [delay(n_tries, failure) for n_tries in range(1, 14)]

    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[9:] == [102.4, 102.4, 102.4, None]


def test_a_receiver_may_ask_for_more_time_but_not_for_less():
    assert delay(1, Outcome(429, retry_after=30.0)) == 30.0
    assert delay(10, Outcome(429, retry_after=30.0)) == 102.4


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_is_final_is_not_tried_again(status: int):
    assert delay(1, Outcome(status)) is None


# What is sent


@pytest.fixture
def sending() -> Iterator[Webhooks]:
    sending = Webhooks(INTERVAL, first_delay=0.01)
    yield sending
    sending.close()


def attached(sending: Webhooks, url: str, events: frozenset[Change] = ALL) -> Prediction:
    prediction = Prediction("p", {"x": "secret"}, {"x": "**"}, NOW)
    sending.attach(prediction, webhooks.Receiver(url, events, to_loopback=True))
    return prediction


def until(look: Callable[[], object]) -> None:
    with gevent.Timeout(TIMEOUT):
        while not look():
            gevent.sleep(0.005)


def test_events_leave_in_order_each_a_later_state(sending: Webhooks, receiver: Receiver):
    prediction = attached(sending, receiver.url)

    prediction.begin(NOW)
    until(lambda: len(receiver.got) == 1)
    prediction.add_output("a")
    until(lambda: len(receiver.got) == 2)
    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert receiver.statuses == ["processing", "processing", "succeeded"]
    assert [got.body.get("output") for got in receiver.got] == [None, "a", "a"]
    assert receiver.got[0].body["input"] == {"x": "**"}
    assert sending.counts.delivered == 3


def test_an_event_keeps_its_id_when_it_is_sent_again_and_shares_it_with_no_other(receiver: Receiver):
    secret = "whsec_" + "QUJD" * 8
    sending = Webhooks(INTERVAL, first_delay=0.01, signer=WebhookSigner(secret))
    prediction = attached(sending, receiver.url, frozenset({START, COMPLETED}))
    prediction.begin(NOW)
    until(lambda: len(receiver.got) == 1)
    receiver.say(503)

    prediction.end(Status.SUCCEEDED, NOW)
    is_done = sending.flush(TIMEOUT)
    sending.close()

    assert is_done
    start, first, second = (got.headers["webhook-id"] for got in receiver.got)
    assert start != first == second
    for got in receiver.got:
        assert Webhook(secret).verify(got.raw, got.headers) == got.body


def test_a_start_is_never_sent_as_an_end(sending: Webhooks, receiver: Receiver):
    prediction = attached(sending, receiver.url)

    prediction.begin(NOW)
    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert receiver.statuses == ["processing", "succeeded"]


def test_outputs_are_throttled_and_the_last_one_is_sent(sending: Webhooks, receiver: Receiver):
    prediction = attached(sending, receiver.url, frozenset({OUTPUT, LOGS}))
    prediction.begin(NOW)
    began = time.monotonic()

    for number in range(100):
        prediction.add_output(number)
        prediction.add_log("stdout", "x\n")
        gevent.sleep(0.001)
    until(lambda: receiver.got and len(receiver.got[-1].body["output"]) == 100)
    seconds = time.monotonic() - began
    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert 2 <= len(receiver.got) <= seconds / INTERVAL + 2


def test_a_slow_receiver_gets_one_event_for_all_that_happened_meanwhile(sending: Webhooks, receiver: Receiver):
    receiver.hold()
    prediction = attached(sending, receiver.url)
    prediction.begin(NOW)
    until(lambda: len(receiver.got) == 1)

    for number in range(50):
        prediction.add_output(number)
        gevent.sleep(0)
    prediction.end(Status.SUCCEEDED, NOW)
    receiver.let_go()

    assert sending.flush(TIMEOUT)
    assert receiver.statuses == ["processing", "succeeded"]


def test_the_end_is_tried_again_until_it_is_taken(sending: Webhooks, receiver: Receiver):
    for status in (500, 503, 429):
        receiver.say(status)
    prediction = attached(sending, receiver.url, frozenset({COMPLETED}))
    prediction.begin(NOW)

    prediction.end(Status.FAILED, NOW, "E: no")

    assert sending.flush(TIMEOUT)
    assert receiver.statuses == ["failed"] * 4
    assert (sending.counts.delivered, sending.counts.retried) == (1, 3)


def test_the_receivers_own_delay_is_honoured(sending: Webhooks, receiver: Receiver):
    receiver.say(503, Retry_After="1")
    prediction = attached(sending, receiver.url, frozenset({COMPLETED}))
    prediction.begin(NOW)

    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert receiver.got[1].at - receiver.got[0].at > 0.95


def test_other_events_are_tried_once(sending: Webhooks, receiver: Receiver):
    receiver.say(503)
    prediction = attached(sending, receiver.url, frozenset({START}))

    prediction.begin(NOW)
    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert len(receiver.got) == 1
    assert sending.counts.failed == 1


@pytest.mark.parametrize("status", [404, 302])
def test_a_final_answer_ends_it(sending: Webhooks, receiver: Receiver, status: int):
    receiver.say(status, Location="/other")
    prediction = attached(sending, receiver.url, frozenset({COMPLETED}))
    prediction.begin(NOW)

    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert [got.method for got in receiver.got] == ["POST"]


def test_a_dead_receiver_is_tried_thirteen_times(receiver: Receiver):
    sending = Webhooks(INTERVAL, first_delay=0.0001)
    prediction = attached(sending, closed_url(), frozenset({COMPLETED}))
    prediction.begin(NOW)

    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert (sending.counts.retried, sending.counts.failed) == (12, 1)
    sending.close()


def test_who_hurries_tries_once(receiver: Receiver):
    sending = Webhooks(INTERVAL, first_delay=100.0)
    receiver.say(503)
    prediction = attached(sending, receiver.url, frozenset({COMPLETED}))
    prediction.begin(NOW)
    prediction.end(Status.SUCCEEDED, NOW)
    until(lambda: sending.n_waiting == 1)

    sending.hurry()

    assert sending.flush(TIMEOUT)
    assert len(receiver.got) == 1
    assert sending.n_waiting == 0
    sending.close()


def test_not_everybody_may_wait_for_a_dead_receiver(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhooks, "MAX_WAITING", 2)
    sending, url = Webhooks(INTERVAL, first_delay=100.0), closed_url()
    predictions = [attached(sending, url, frozenset({COMPLETED})) for _ in range(5)]
    for prediction in predictions:
        prediction.begin(NOW)
        prediction.end(Status.SUCCEEDED, NOW)

    until(lambda: sending.counts.failed == 3)

    assert sending.n_waiting == 2
    sending.close()


def test_nothing_is_sent_where_no_event_is_wanted(sending: Webhooks, receiver: Receiver):
    prediction = attached(sending, receiver.url, frozenset())
    prediction.begin(NOW)
    prediction.end(Status.SUCCEEDED, NOW)

    assert sending.flush(TIMEOUT)
    assert not receiver.got


def test_closing_gives_up_what_is_left(receiver: Receiver):
    receiver.hold()
    sending = Webhooks(INTERVAL)
    prediction = attached(sending, receiver.url)
    prediction.begin(NOW)
    until(lambda: receiver.got)
    began = time.monotonic()

    sending.close()
    sending.close()

    assert time.monotonic() - began < 5
