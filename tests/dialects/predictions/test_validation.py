# ruff: noqa: UP045 - authors write Optional, too
import json
import logging
from typing import Any, Literal, Optional

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import InvalidInput
from corosrv.dialects.predictions.values import MAX_FAULTS, InputSchema
from corosrv.worker import File, Input, Path, Secret, streaming
from corosrv.workers.worker.signatures.signature import document, read

STARS = "*" * 10


def _schema(annotation: Any, *default: Any) -> InputSchema:
    def run(x): ...

    run.__annotations__["x"] = annotation
    run.__defaults__ = default or None
    return InputSchema(document(read(run)))


def _faults(schema: InputSchema, given: object) -> list[tuple[list[str | int], str]]:
    """Places within the input, and messages."""
    with pytest.raises(InvalidInput) as raised:
        schema.check(given)
    assert all(error["loc"][:2] == ["body", "input"] for error in raised.value.errors)
    return [(error["loc"][2:], error["msg"]) for error in raised.value.errors]


@pytest.mark.parametrize(
    ("annotation", "default", "value", "checked"),
    [
        (str, Input(min_length=2, max_length=2), "😀a", "😀a"),
        (str, Input(regex="b+"), "abc", "abc"),
        (int, Input(ge=1, le=5), 5.0, 5),
        (int, Input(), 2**80, 2**80),
        (int, 3, 3, 3),
        (float, Input(ge=1), 3, 3.0),
        (bool, Input(), False, False),
        (Path, Input(), "data:,x", "data:,x"),
        (Path, Path("/model/a.png"), "/model/a.png", "/model/a.png"),
        (list[Path], [Path("/model/a.png")], ["/model/a.png"], ["/model/a.png"]),
        (File, Input(), "HTTP://a/b", "HTTP://a/b"),
        (Secret, Input(), "key", "key"),
        (list[int], Input(), [], []),
        (list[float], Input(), [1, 2], [1.0, 2.0]),
        (dict, Input(), {"a": [1]}, {"a": [1]}),
        (dict[str, float], Input(), {"a": 1}, {"a": 1.0}),
        (Any, Input(), {"a": None}, {"a": None}),
        (Any, Input(), None, None),
        (Optional[int], Input(default=3), None, None),
        (list[Optional[int]], Input(), [None, 1], [None, 1]),
        (int | str, Input(), "5", "5"),
        (int | str, Input(), 5.0, 5),
        (float | str, Input(), 5, 5.0),
        (list[int] | str, Input(), [1.0], [1]),
        (str, Input(choices=["a", "b"]), "a", "a"),
        (int, Input(choices=[1, 2]), 1.0, 1),
        (Optional[Literal["a"]], Input(), None, None),
        (list[str], Input(choices=["a", "b"]), ["b", "b"], ["b", "b"]),
    ],
)
def test_what_fits_is_taken_and_converted(annotation, default, value, checked):
    taken = _schema(annotation, default).check({"x": value})["x"]

    assert taken == checked
    assert type(taken) is type(checked)


@pytest.mark.parametrize(
    ("annotation", "default", "value", "place", "words"),
    [
        (str, Input(), 3, [], "string"),
        (str, Input(), None, [], "string"),
        (str, Input(min_length=2), "😀", [], "at least 2 characters"),
        (str, Input(max_length=2), "abc", [], "at most 2 characters"),
        (str, Input(regex="^b"), "ab", [], "match the pattern ^b"),
        (int, Input(), True, [], "integer"),
        (int, Input(), 1.5, [], "integer"),
        (int, Input(), float("inf"), [], "integer"),
        (int, Input(), "5", [], "integer"),
        (int, Input(ge=1), 0, [], "at least 1"),
        (int, Input(le=5), 6, [], "at most 5"),
        (float, Input(), 10**400, [], "number"),
        (float, Input(), float("nan"), [], "number"),
        (float, Input(), True, [], "number"),
        (bool, Input(), 1, [], "true or false"),
        (Path, Input(), "/etc/passwd", [], "http, https or data URL"),
        (Path, Input(), "file:///etc/passwd", [], "http, https or data URL"),
        (File, Input(), "passwd", [], "http, https or data URL"),
        (Path, Path("/model/a.png"), "/model/b.png", [], "http, https or data URL"),
        (list[Path], Input(), ["data:,x", "/etc/passwd"], [1], "http, https or data URL"),
        (list[int], Input(), {}, [], "list"),
        (list[int], Input(), [1, "a"], [1], "integer"),
        (list[list[int]], Input(), [[], [1, None]], [1, 1], "integer"),
        (list[int], Input(ge=1), [1, 0], [1], "at least 1"),
        (dict, Input(), [], [], "object"),
        (dict[str, int], Input(), {"a/b": "c"}, ["a/b"], "integer"),
        (int | str, Input(), [], [], "type integer or string"),
        (int | str, Input(ge=3), 2, [], "at least 3"),
        (list[int] | str, Input(), ["a"], [0], "integer"),
        (str, Input(choices=["a", "ä"]), "b", [], 'one of "a", "ä"'),
        (Literal[1, 2], Input(), True, [], "one of 1, 2"),
        (list[str], Input(choices=["a"]), ["a", "b"], [1], "one of"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(annotation, default, value, place, words):
    [(found, message)] = _faults(_schema(annotation, default), {"x": value})

    assert found == ["x", *place]
    assert words in message


def test_all_faults_are_told_at_once_in_the_shape_of_a_422():
    def run(a: str, b: int, c: int = Input(ge=1), d: str = "x"): ...

    with pytest.raises(InvalidInput) as raised:
        InputSchema(document(read(run))).check({"b": "1", "c": 0})

    assert raised.value.errors == [
        {"loc": ["body", "input", "a"], "msg": "Field required", "type": "value_error.missing"},
        {"loc": ["body", "input", "b"], "msg": "must be an integer", "type": "value_error"},
        {"loc": ["body", "input", "c"], "msg": "must be at least 1", "type": "value_error"},
    ]


@pytest.mark.parametrize("given", [None, [], "x", 3, True])
def test_an_input_that_is_no_object_is_refused(given):
    assert _faults(_schema(int), given) == [([], "must be an object")]


def test_a_million_faults_are_not_all_told():
    assert len(_faults(_schema(list[int]), {"x": ["a"] * 100_000})) == MAX_FAULTS
    assert len(_faults(_schema(list[int] | str), {"x": ["a"] * 100_000})) == MAX_FAULTS


def test_unknown_fields_are_dropped_with_a_warning_that_holds_no_value(caplog):
    with caplog.at_level(logging.WARNING, "corosrv"):
        checked = _schema(int).check({"x": 1, "y": "hunter2"})

    assert checked == {"x": 1}
    assert "'y'" in caplog.text
    assert "hunter2" not in caplog.text


def test_defaults_and_nulls_are_filled_in_and_never_shared():
    def run(a: int = 3, b: list = Input(default=["x"]), c: Optional[str] = None, d: Any = None, e: Secret = "k"): ...

    schema = InputSchema(document(read(run)))
    first, second = schema.check({}), schema.check({})

    assert first == {"a": 3, "b": ["x"], "c": None, "d": None, "e": STARS}
    assert first["b"] is not second["b"]


def test_secrets_are_masked_wherever_they_are_and_nothing_else_is():
    def run(a: Secret, b: list[Secret], c: Optional[Secret], d: str, e: dict[str, Secret]): ...

    given = {"a": "k1", "b": ["k2", "k3"], "c": None, "d": "open", "e": {"f": "k4"}}
    masked = InputSchema(document(read(run))).mask(given)

    assert masked == {"a": STARS, "b": [STARS, STARS], "c": None, "d": "open", "e": {"f": STARS}}
    assert given["a"] == "k1"


def test_secrets_in_an_optional_list_are_masked():
    def run(a: Optional[list[Secret]], b: Optional[list[str]]): ...

    masked = InputSchema(document(read(run))).mask({"a": ["hunter2", None], "b": ["open"]})

    assert masked == {"a": [STARS, None], "b": ["open"]}


def test_no_message_holds_a_secret():
    def run(a: Secret, b: list[Secret]): ...

    schema = InputSchema(document(read(run)))

    assert "hunter2" not in str(_faults(schema, {"a": ["hunter2"], "b": ["x", {"hunter2": "hunter2"}]}))
    assert "hunter2" not in str(schema.mask({"a": {"not": "hunter2"}, "b": ["hunter2"]}))


def test_a_large_input_is_checked_in_a_thread_with_the_same_result():
    schema = _schema(list[int])

    assert schema.check({"x": [1.0, 2]}, n_bytes=2 << 20) == {"x": [1, 2]}
    with pytest.raises(InvalidInput, match="integer"):
        schema.check({"x": [1, "2"]}, n_bytes=2 << 20)


def test_streaming_is_what_the_document_says():
    @streaming
    def followed(x: int): ...

    assert InputSchema(document(read(followed))).is_streaming
    assert not _schema(int).is_streaming


LEAVES = [
    (str, Input()),
    (str, Input(min_length=1, max_length=3)),
    (str, Input(regex="^[ab]*$")),
    (int, Input()),
    (int, Input(ge=-1, le=1)),
    (float, Input(ge=0.5)),
    (bool, Input()),
    (Any, Input()),
    (dict, Input()),
    (list, Input()),
    (Secret, Input()),
    (str, Input(choices=["a", "b"])),
    (int, Input(choices=[0, 1])),
    (Literal["a", 0], Input()),
]


def _around(leaf: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    of, info = leaf
    return [leaf, (Optional[of], info), (list[of], info), (list[Optional[of]], info), (Optional[list[of]], info)]


FIELDS = [field for leaf in LEAVES for field in _around(leaf)]
FIELDS += [(int | str, Input()), (Optional[int | list[str]], Input(ge=0)), (dict[str, int | bool], Input()),
           (float | bool | list[int], Input(le=2))]  # fmt: skip

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([0.0, 0.5, 1.0, 1e300, -0.5])
    | st.text("abc", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)


def _without_nullable(node: Any) -> Any:
    """OpenAPI's `nullable`, in words that JSON Schema has."""
    if isinstance(node, list):
        return [_without_nullable(member) for member in node]
    if not isinstance(node, dict):
        return node
    rest = {key: _without_nullable(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]} if node.get("nullable") is True else rest


@settings(deadline=None)
@given(st.sampled_from(FIELDS), VALUES)
def test_what_is_taken_is_valid_by_the_document_and_what_is_not_has_a_place_in_the_value(field, value):
    schema = _schema(*field)
    root = {"$ref": "#/components/schemas/Input", **_without_nullable(schema.document)}
    is_valid = jsonschema.Draft202012Validator(root).is_valid({"x": value})

    try:
        checked = schema.check({"x": value})
    except InvalidInput as error:
        assert not is_valid
        for entry in error.errors:
            node = {"x": value}
            for key in entry["loc"][2:]:
                node = node[key]
            assert entry["msg"]
        json.dumps(error.errors)
    else:
        assert is_valid
        assert checked == {"x": value}
        assert schema.check(checked) == checked
