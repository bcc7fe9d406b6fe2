"""What handlers give back, as answers."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from corosrv.base.errors import OutputFailed
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.worker import InvalidInput, ModelInferResponse
from corosrv.workers.worker.app.answers import answer_of, answers_of

CARD = HandlerCard(
    "m",
    outputs=[
        TensorSpec("vector", "INT32", [-1]),
        TensorSpec("pairs", "FP32", [-1, 2]),
        TensorSpec("matrix", "FP32", [-1, -1]),
        TensorSpec("scalar", "INT64", []),
        TensorSpec("text", "BYTES", [-1]),
        TensorSpec("empty", "INT32", [-1, 0]),
    ],
)


VECTOR = Tensor("vector", "INT32", [1], data=[1])


def only(value: Any) -> Tensor:
    (tensor,) = answer_of(CARD, value).outputs
    return tensor


@pytest.mark.parametrize(
    ("name", "content", "shape"),
    [
        ("vector", [1, 2, 3], (3,)),
        ("vector", [], (0,)),
        ("vector", (4,), (1,)),
        ("pairs", [1, 2, 3.5, 4], (2, 2)),
        ("scalar", [7], ()),
        ("text", ["a", b"b"], (2,)),
        ("empty", [], (0, 0)),
    ],
)
def test_a_list_gets_its_datatype_and_one_size_from_the_declaration(name: str, content: Any, shape: Any) -> None:
    tensor = only({name: content})

    assert tensor.shape == shape
    assert tensor.datatype == next(spec.datatype for spec in CARD.outputs if spec.name == name)


def test_an_array_has_its_own_shape() -> None:
    tensor = only({"matrix": numpy.ones((2, 3), dtype="float32")})

    assert (tensor.shape, tensor.data) == ((2, 3), [1.0] * 6)


def test_nested_lists_tell_their_shape() -> None:
    tensor = only({"matrix": [[1, 2, 3], (4, 5, 6)]})

    assert (tensor.shape, tensor.data) == ((2, 3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert only({"matrix": [[], []]}).shape == (2, 0)


def test_a_tensor_gets_the_name_of_its_place() -> None:
    assert only({"vector": Tensor("a", "INT32", [1], data=[1])}).name == "vector"


def test_a_response_passes_as_it_is() -> None:
    response = ModelInferResponse([Tensor("vector", "INT32", [1], data=[1])], {"p": 1}, final=True)

    assert answer_of(CARD, response) is response


def test_what_declares_no_outputs_may_give_any_tensor() -> None:
    tensor = Tensor("anything", "FP64", [1], data=[1.0])

    assert answer_of(HandlerCard("m"), {"anything": tensor}).outputs == [tensor]
    assert answer_of(HandlerCard("m"), {}).outputs == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"pairs": [1, 2, 3]}, "has 3 elements, where the shape"),
        ({"matrix": [1, 2]}, "several variable dimensions, which a list does not tell"),
        ({"scalar": [1, 2]}, "has 2 elements"),
        ({"vector": [1.5]}, "1.5"),
        ({"vector": [True]}, "True"),
        ({"vector": "12"}, "is a str: return a list"),
        ({"vector": {1: 2}}, "is a dict: return a list"),
        ({"vector": iter([1])}, "return a list"),
        ({"vector": [[1]]}, r"the shape \[1, 1\], and declared as \[-1\]"),
        ({"pairs": [[1, 2], [3]]}, "is ragged: it has lists of 1 and of 2 side by side"),
        ({"pairs": [[1, 2], 3]}, "has lists and elements side by side"),
        ({"vector": numpy.ones((2, 2), dtype="int32")}, "the shape"),
        ({"matrix": numpy.ones((2,), dtype="float32")}, "the shape"),
        ({"pairs": numpy.ones((2, 3), dtype="float32")}, r"the shape \[2, 3\], and declared as \[-1, 2\]"),
        ({"other": [1]}, "'other', which it does not declare"),
        (5, "returned a int: return a ModelInferResponse"),
        (ModelInferResponse(["x"]), "has an output that is a str and no Tensor"),
        (ModelInferResponse([VECTOR, VECTOR]), "has two outputs of the name 'vector'"),
        (ModelInferResponse([Tensor("vector", "INT64", [1], data=[1])]), "is INT64, and declared as INT32"),
        (ModelInferResponse([VECTOR], {"p": [1]}), "has the parameter 'p'"),
        (ModelInferResponse([VECTOR], {1: "p"}), "has the parameter 1"),
        (ModelInferResponse([VECTOR], final=2), "has an answer with final=2: say True, False or None"),
    ],
)
def test_what_does_not_fit_names_handler_and_output(value: Any, problem: str) -> None:
    with pytest.raises(OutputFailed, match=f"^m.*{problem}"):
        answer_of(CARD, value)


def test_a_list_without_declaration_says_what_to_do() -> None:
    with pytest.raises(OutputFailed, match=r"m declares no outputs, so .* declare it, or return a Tensor"):
        answer_of(HandlerCard("m"), {"n": [1]})


def test_a_batch_has_answers_and_errors_in_their_places() -> None:
    refusal = InvalidInput("no")

    answers = answers_of(CARD, ({"vector": [1]}, refusal, {"other": [1]}), 3)

    assert isinstance(answers[0], ModelInferResponse)
    assert answers[1] is refusal
    assert isinstance(answers[2], OutputFailed)


@pytest.mark.parametrize("values", [None, {"vector": [1]}, "ab", [{"vector": [1]}] * 3, iter([])])
def test_a_batch_needs_a_list_as_long_as_its_own(values: Any) -> None:
    with pytest.raises(OutputFailed, match="for a batch"):
        answers_of(CARD, values, 2)
