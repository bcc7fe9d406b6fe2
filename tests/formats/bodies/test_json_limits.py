"""What a JSON text asks of its parser, found by the scanner in Python and by the native one alike."""

import functools

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corosrv.base.errors import Refused
from corosrv.formats import bodies
from corosrv.models.engine.binding import NativeJsonScanner

LIMITS = bodies.JsonLimits(depth=4, keys=3, digits=5, values=20)
native = NativeJsonScanner(**LIMITS._asdict()).fault
in_python = functools.partial(bodies.scan, limits=LIMITS)
both = pytest.mark.parametrize("scan", [in_python, native], ids=["python", "native"])


def fault_of(value, depth: int = 0) -> str | None:
    """What the scan should find, by the values that the parser made."""
    if isinstance(value, dict) and len(value) > 3:
        return "keys"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((fault for item in inner if (fault := fault_of(item, depth + 1))), None) or (
        "depth" if depth >= 4 and isinstance(value, dict | list) else None
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99_999) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=8,
)


@both
@given(value=JSON)
def test_the_scan_refuses_what_is_over_a_limit_and_nothing_else(scan, value):
    found = scan(msgspec.json.encode(value))

    if found is None:
        assert fault_of(value) is None
    else:
        assert found[0] == "values" or fault_of(value) is not None


@given(data=JSON.map(msgspec.json.encode) | st.text(alphabet='{}[]":,0123456789eE.+- ').map(str.encode))
@example(data=b'{"a":"\\"')
@example(data=rb'["\\","\"[[[[[","\\\""]')
@example(data=b'["\\\\","' + b"," * 30 + b'"]')
@example(data=b"[0.000001]")
@example(data=b"1e00005")
@example(data=b"1e-99999")
@example(data=b"000000E:")
def test_both_scanners_find_the_same_fault(data):
    found = in_python(data)

    assert found == native(data) or (found and found[0] == native(data)[0] and found[1] == len(data))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 129, r"nested deeper than 128 levels \(byte 129\)"),
        (b"[" + b"9" * 309 + b"]", "a number of more than 308 digits"),
        (b'{"temperature": 1e999}', "a number that is too large: an exponent may be 308 at most"),
        (b"-1E+309", "a number that is too large"),
        (b"[" + b"1," * (2**19 + 1) + b"1]", "more than 524288 values"),
        (b"{" + b'"a":1,' * 5000 + b"}", "an object of more than 4096 keys"),
    ],
)
def test_a_limit_that_is_exceeded_is_named(text, words):
    with pytest.raises(Refused, match=words) as refused:
        bodies.check(text)

    assert refused.value.code == "invalid_json"
