"""Texts that clients send."""

import pytest

from corosrv.base.errors import Refused
from corosrv.formats.bodies import check_text


@pytest.mark.parametrize("text", ["", "é🌊", "a\0b"])
def test_text_that_can_be_encoded_is_taken(text):
    assert check_text(text, "stop") == text


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(Refused, match="stop: half of a surrogate pair"):
        check_text("x\ud800", "stop")
