"""What tests of predictions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver
