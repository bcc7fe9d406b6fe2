"""Lines that are indented too little."""

import pytest

from corosrv.dialects.llamacpp.answers import Indent


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a", "a"),
        ("a\n  b", "a\n  b"),
        ("a\n\tb\n \tc", "a\n\tb\n \tc"),
        ("a\nb\n  c", "a\n"),
        ("a\n  b\n c", "a\n  b\n "),
        ("a\n\n  b", "a\n"),
        ("a\n ", "a\n "),
        ("\nb", "\n"),
    ],
)
def test_a_text_ends_where_a_line_begins_too_far_left(text, kept):
    least = 1 if "\t" in text else 2
    whole, piecewise = Indent(least), Indent(least)

    assert whole.take(text) == kept
    assert "".join(map(piecewise.take, text)) == kept
    assert whole.is_over == piecewise.is_over == (kept != text)
    assert not (whole.is_over and whole.take("more"))
