"""Webhooks that tell of the ends of background responses, as OpenAI's client reads them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.serve.server import Server, Servers
from tests.support.receiver import Got, Receiver
from tests.support.waiting import eventually

KEY = "whsec_" + "QUJD" * 8
BEGIN: dict[str, Any] = {"model": "synthetic", "input": "hi", "background": True}


@pytest.fixture
def telling(start: Servers, receiver: Receiver) -> Server:
    return start.start(webhook_secret=f"{KEY} whsec_{'QUJE' * 8}", response_webhook_url=receiver.url)


def told(receiver: Receiver, n: int) -> list[Got]:
    eventually(lambda: len(receiver.got) >= n, what=f"{n} webhooks")
    return receiver.got


def test_each_end_of_a_background_response_is_told_and_signed(telling: Server, receiver: Receiver) -> None:
    receiver.say(503)
    with telling.client(webhook_secret=KEY) as client:
        cut = client.responses.create(**BEGIN, max_output_tokens=2)
        first, again = told(receiver, 2)
        long = client.responses.create(**BEGIN)
        client.responses.cancel(long.id)
        *_, last = told(receiver, 3)
        client.responses.create(model="synthetic", input="hi", max_output_tokens=1)

        events: list[Any] = [client.webhooks.unwrap(got.raw, got.headers) for got in (again, last)]
        assert [(event.type, event.data.id) for event in events] == [
            ("response.incomplete", cut.id),
            ("response.cancelled", long.id),
        ]
        assert client.responses.retrieve(cut.id).status == "incomplete"
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(again.raw, last.headers)
    assert first.headers["webhook-id"] == again.headers["webhook-id"] != last.headers["webhook-id"]
    assert KEY not in telling.log
    assert len(receiver.got) == 3, "a response that its client waits for tells nobody"
