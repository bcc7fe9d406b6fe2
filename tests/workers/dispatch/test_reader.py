"""Who is told of a call's answers: a greenlet that takes them, or a listener, which holds nothing meanwhile."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Misuse
from corosrv.workers.dispatch.answers import HandlerReader
from tests.workers.dispatch.hosts import card, outputs, text


@pytest.fixture
def reader() -> HandlerReader:
    return HandlerReader(card(), lambda: None)


def test_a_listener_is_told_once_of_what_comes(reader: HandlerReader):
    news = []
    assert reader.on_news(lambda: news.append(reader.is_finished))

    reader.add(outputs(text("out", b"1")), 1)
    reader.end(None)

    assert news == [False]
    assert len(reader.take()) == 2


def test_a_listener_is_not_needed_for_what_is_there(reader: HandlerReader):
    reader.end(None)

    assert not reader.on_news(lambda: pytest.fail("told of old news"))


def test_a_listener_may_follow_the_last_but_not_stand_beside_it(reader: HandlerReader):
    assert reader.on_news(lambda: None)
    with pytest.raises(Misuse):
        reader.on_news(lambda: None)
    reader.add(outputs(text("out", b"1")), 1)
    reader.take()

    assert reader.on_news(lambda: None)
