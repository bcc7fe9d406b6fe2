"""What may be recorded, and what raises in user code."""

from __future__ import annotations

from typing import Any

import pytest

from corosrv.workers.worker.scope import NOWHERE, Metrics, current_scope

Sent = list[tuple[str, Any, str]]


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def metrics(sent: Sent) -> Metrics:
    return Metrics(lambda *change: sent.append(change))


@pytest.mark.parametrize("value", [True, 3, 2.5, "text", [1], {"a": 1}])
def test_a_value_goes_out(metrics: Metrics, sent: Sent, value: Any) -> None:
    metrics["name"] = value

    assert sent == [("name", value, "replace")]


@pytest.mark.parametrize("value", [b"bytes", object(), (1, 2), {1}, 1j])
def test_other_types_raise(metrics: Metrics, value: Any) -> None:
    with pytest.raises(TypeError, match="must be a bool, int, float, str, list or dict"):
        metrics["name"] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_does_not_have_raises(metrics: Metrics, value: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        metrics["name"] = value


@pytest.mark.parametrize("name", ["a", "A1", "a_b", "a.b.c.d", "a1_2b", "x" * 128, "predict_times", "cogs", "cog"])
def test_names(metrics: Metrics, sent: Sent, name: str) -> None:
    metrics[name] = 1

    assert sent == [(name, 1, "replace")]


BAD_NAMES = {
    "": "empty segments",
    "1a": "must start with a letter",
    "_a": "must start with a letter",
    "a_": "must end with a letter or digit",
    "a__b": "must not contain consecutive underscores",
    "a..b": "empty segments",
    ".a": "must not start with a dot",
    "a.": "must not end with a dot",
    "a.b.c.d.e": "at most 4 dot-separated segments",
    "x" * 129: "at most 128 characters",
    "a b": "letters, digits",
    "ä": "must start with a letter",
    "a-b": "letters, digits",
    "a\n": "letters, digits",
    "predict_time": "reserved",
    "cog.a": "reserved",
}


@pytest.mark.parametrize(("name", "fault"), BAD_NAMES.items())
def test_bad_names_raise(metrics: Metrics, sent: Sent, name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        metrics[name] = 1
    assert sent == []


def test_a_name_is_a_string(metrics: Metrics) -> None:
    with pytest.raises(TypeError, match="name is a string"):
        metrics.record(3, 1)  # type: ignore[arg-type]


def test_modes(metrics: Metrics, sent: Sent) -> None:
    metrics.record("n", 1, mode="incr")
    metrics.record("n", 1.5, mode="incr")
    metrics.record("l", "a", mode="append")
    metrics.record("l", 2, mode="append")

    assert [mode for _, _, mode in sent] == ["increment", "increment", "append", "append"]


def test_an_unknown_mode_raises(metrics: Metrics) -> None:
    with pytest.raises(ValueError, match="replace, incr or append"):
        metrics.record("n", 1, mode="multiply")


@pytest.mark.parametrize("value", ["text", True, [1]])
def test_incr_needs_a_number(metrics: Metrics, value: Any) -> None:
    with pytest.raises(TypeError, match="incr needs a number"):
        metrics.record("n", value, mode="incr")


@pytest.mark.parametrize(
    ("first", "second", "mode"),
    [(1, "a", "replace"), ("a", 1, "incr"), (1, True, "replace"), ([1], 1, "replace"), (1, 1, "append")],
)
def test_a_name_keeps_its_type_until_it_is_deleted(metrics: Metrics, first: Any, second: Any, mode: str) -> None:
    metrics["n"] = first

    with pytest.raises(TypeError, match="delete it before"):
        metrics.record("n", second, mode)

    del metrics["n"]
    metrics.record("n", second, mode)


def test_int_and_float_are_one_type(metrics: Metrics, sent: Sent) -> None:
    metrics["n"] = 1
    metrics["n"] = 1.5

    assert len(sent) == 2


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a.b", "a.b.c"), ("a.b.c", "a")])
def test_no_name_is_a_value_and_a_parent(metrics: Metrics, sent: Sent, names: tuple[str, str]) -> None:
    metrics[names[0]] = 1

    with pytest.raises(ValueError, match="cannot hold a value and be the parent"):
        metrics[names[1]] = 1

    del metrics[names[0]]
    metrics[names[1]] = 1
    assert len(sent) == 3


def test_names_that_only_begin_alike_are_strangers(metrics: Metrics, sent: Sent) -> None:
    metrics["ab.c"] = 1
    metrics["a"] = 1

    assert len(sent) == 2


def test_none_deletes_what_is_there(metrics: Metrics, sent: Sent) -> None:
    metrics["n"] = 1
    metrics.record("n", None, mode="incr")
    metrics.delete("n")
    del metrics["never"]

    assert sent == [("n", 1, "replace"), ("n", None, "replace")]


def test_what_cannot_be_sent_was_not_recorded() -> None:
    def refuse(name: str, value: Any, mode: str) -> None:
        raise TypeError("no JSON")

    metrics = Metrics(refuse)
    with pytest.raises(TypeError, match="no JSON"):
        metrics["a"] = [object()]

    with pytest.raises(TypeError, match="no JSON"):
        metrics["a.b"] = 1  # and not for its parent's sake


def test_outside_predictions_nothing_happens() -> None:
    scope = current_scope()

    scope.record_metric("not a name", object(), mode="nonsense")
    scope.metrics["a"] = 1
    del scope.metrics["a"]

    assert scope is NOWHERE
    assert scope.context == {}
