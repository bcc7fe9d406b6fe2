"""The header Idempotency-Key."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.idempotency import MAX_KEY, parse_key


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ('"8e03978e"', "8e03978e"),
        ("  order 7\t", "order 7"),
        (r'"a\"b\\c"', r"a\b".replace("\\", '"') + r"\c"),
        ("a,b", "a,b"),
        ('it"s', 'it"s'),
        ("k" * MAX_KEY, "k" * MAX_KEY),
        ('"' + "k" * MAX_KEY + '"', "k" * MAX_KEY),
    ],
)
def test_a_key_stands_as_it_is_or_in_quotation_marks(field: str, key: str):
    assert parse_key(field) == key


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ('""', "is empty"),
        ("k" * (MAX_KEY + 1), "more than 255 characters"),
        ("k" * 1_000_000, "more than 255 characters"),
        ('"open', "no quoted string"),
        ('"', "no quoted string"),
        ('"a" "b"', "no quoted string"),
        ('"a";b=1', "no quoted string"),
        (r'"a\b"', "no quoted string"),
        ("schl\xfcssel", "printable ASCII"),
        ("a\x00b", "printable ASCII"),
        ("a\nb", "printable ASCII"),
    ],
)
def test_what_is_no_key_is_refused(field: str, words: str):
    with pytest.raises(Refused, match=words) as refusal:
        parse_key(field)

    assert refusal.value.param == "Idempotency-Key"
    assert len(str(refusal.value)) < 200
