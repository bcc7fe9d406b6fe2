"""Handlers whose types say what they take and give."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import numpy
import pydantic
import pytest
from numpy.typing import NDArray

from corosrv.base.errors import OutputFailed
from corosrv.dialects.kserve.metadata import model_metadata
from corosrv.worker import (
    App,
    AppError,
    AsyncContext,
    Context,
    InvalidInput,
    ModelInferRequest,
    ModelInferResponse,
    Tensor,
    TensorSpec,
    Worker,
)

if TYPE_CHECKING:
    from nowhere import Unknown


class Item(pydantic.BaseModel):
    name: str
    price: float = pydantic.Field(default=1.0, ge=0)


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    left: int
    right: str


class Outputs(TypedDict, total=False):
    total: int
    words: list[str]


class Strange:
    """No tensor and no JSON holds it."""


UserId = NewType("UserId", int)
Small = Annotated[int, msgspec.Meta(ge=0, le=9)]


def registered(function: Any, **options: Any) -> App:
    app = App("typed")
    app.model("m", **options)(function)
    return app


def card_of(function: Any, **options: Any) -> Any:
    (card,) = registered(function, **options).pools()[0].cards()
    return card


def called(function: Any, *tensors: Tensor) -> Any:
    return registered(function).test_call("m", ModelInferRequest(tensors))


def taking(annotation: Any, default: Any = ...) -> Any:
    """Makes a handler that takes one input of a type, and keeps it in `got`."""

    def handler(value: Any) -> None:
        handler.got = value  # type: ignore[attr-defined]

    handler.__annotations__["value"] = annotation
    if default is not ...:
        handler.__defaults__ = (default,)
    return handler


def giving(annotation: Any, value: Any) -> Any:
    """Makes a handler that returns a value, and says that it is of a type."""

    def handler(n: int = 0) -> Any:
        return value

    handler.__annotations__["return"] = annotation
    return handler


def same(one: Any, other: Any) -> bool:
    return bool(numpy.array_equal(one, other)) if isinstance(other, numpy.ndarray) else bool(one == other)


ARRAY = numpy.array([[1.5, 2.5]], dtype="float32")

# An annotation, what a tensor of it is, its elements, and the value that they are.
VALUES: list[tuple[Any, str, list[int], list[Any], Any]] = [
    (int, "INT64", [1], [7], 7),
    (float, "FP64", [1], [0.5], 0.5),
    (bool, "BOOL", [1], [True], True),
    (str, "BYTES", [1], ["é"], "é"),
    (bytes, "BYTES", [1], [b"\xff"], b"\xff"),
    (UserId, "INT64", [1], [7], 7),
    (list[int], "INT64", [3], [1, 2, 3], [1, 2, 3]),
    (list[str], "BYTES", [2], ["a", "b"], ["a", "b"]),
    (list[list[float]], "FP64", [2, 1], [1.0, 2.0], [[1.0], [2.0]]),
    (list[list[list[bool]]], "BOOL", [1, 2, 1], [True, False], [[[True], [False]]]),
    (numpy.int8, "INT8", [1], [-3], -3),
    (NDArray[numpy.float32], "FP32", [1, 2], [1.5, 2.5], ARRAY),
    (numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float32]], "FP32", [1, 2], [1.5, 2.5], ARRAY),
    (Literal["a", "b"], "BYTES", [1], ["b"], "b"),
    (Literal[1, 2], "INT64", [1], [2], 2),
    (Color, "BYTES", [1], ["red"], Color.RED),
    (list[Color], "BYTES", [2], ["red", "blue"], [Color.RED, Color.BLUE]),
    (Small, "INT64", [1], [9], 9),
    (dict, "BYTES", [1], ['{"a":[1]}'], {"a": [1]}),
    (dict[str, int], "BYTES", [1], ['{"a":1}'], {"a": 1}),
    (list, "BYTES", [1], ['[1,"a"]'], [1, "a"]),
    (list[Any], "BYTES", [1], ["[1,null]"], [1, None]),
    (int | str, "BYTES", [1], ['"a"'], "a"),
    (Pair, "BYTES", [1], ['[1,"a"]'], Pair(1, "a")),
    (Point, "BYTES", [1], ['{"x":1.0,"y":2.0}'], Point(1.0, 2.0)),
    (Node, "BYTES", [1], ['{"value":1,"next":{"value":2,"next":null}}'], Node(1, Node(2))),
    (Item, "BYTES", [1], ['{"name":"a","price":2.5}'], Item(name="a", price=2.5)),
    (list[Item], "BYTES", [1], ['{"name":"a","price":2.5}'], [Item(name="a", price=2.5)]),
    (dict[str, Item], "BYTES", [1], ['{"k":{"name":"a","price":2.5}}'], {"k": Item(name="a", price=2.5)}),
]


@pytest.mark.parametrize(("annotation", "datatype", "shape", "elements", "value"), VALUES)
def test_a_tensor_becomes_the_value_of_its_type(
    annotation: Any, datatype: str, shape: list[int], elements: list[Any], value: Any
) -> None:
    handler = taking(annotation)

    called(handler, Tensor("value", datatype, shape, data=elements))

    assert same(handler.got, value)
    assert card_of(handler).inputs[0].allows(shape)


@pytest.mark.parametrize(("annotation", "datatype", "shape", "elements", "value"), VALUES)
def test_a_value_becomes_the_tensor_of_its_type(
    annotation: Any, datatype: str, shape: list[int], elements: list[Any], value: Any
) -> None:
    answer = called(giving(annotation, value))

    assert answer.outputs == [Tensor("output", datatype, shape, data=elements)]


def test_the_metadata_of_the_model_shows_what_the_types_say() -> None:
    def handler(a: int, texts: list[str], image: NDArray[numpy.uint8], scale: float = 1.0) -> list[list[float]]: ...

    metadata = model_metadata(card_of(handler), [])

    assert [(one.name, one.datatype, one.shape) for one in (*metadata.inputs, *metadata.outputs)] == [
        ("a", "INT64", [1]),
        ("texts", "BYTES", [-1]),
        ("image", "UINT8", [-1]),
        ("scale", "FP64", [1]),
        ("output", "FP64", [-1, -1]),
    ]
    assert [spec.optional for spec in card_of(handler).inputs] == [False, False, False, True]
    assert [spec.any_rank for spec in card_of(handler).inputs] == [False, False, True, False]


def test_the_sizes_that_an_arrays_type_fixes_are_declared() -> None:
    handler = taking(numpy.ndarray[tuple[int, Literal[3]], numpy.dtype[numpy.float16]])

    assert card_of(handler).inputs == [TensorSpec("value", "FP16", (-1, 3))]


@pytest.mark.parametrize(
    ("handler", "got"),
    [
        (taking(int, 5), 5),
        (taking(str | None), None),
        (taking(str | None, "a"), "a"),
        (taking(NDArray[numpy.int8] | None), None),
    ],
)
def test_an_input_that_is_missing_is_the_default(handler: Any, got: Any) -> None:
    called(handler)

    assert handler.got == got


def test_an_input_without_a_default_must_be_there() -> None:
    with pytest.raises(InvalidInput, match="the input 'value' is missing"):
        registered(taking(int)).pools()[0].bind(None)[0].signature.typed.call(print, ModelInferRequest(), None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("annotation", "datatype", "element", "problem"),
    [
        (str, "BYTES", b"\xff", "can't decode byte 0xff"),
        (dict, "BYTES", "{", "Input data was truncated"),
        (dict, "BYTES", "[1]", "Expected `object`, got `array`"),
        (dict, "BYTES", '{"a":' + "[" * 100_000, "recursion"),
        (Node, "BYTES", '{"value":"a"}', r"Expected `int`, got `str` - at `\$.value`"),
        (Item, "BYTES", '{"name":"a","price":-1}', "price: Input should be greater than or equal to 0$"),
        (list[Item], "BYTES", "{}", "name: Field required$"),
        (Literal["a"], "BYTES", "b", "Invalid enum value 'b'"),
        (Color, "BYTES", "green", "Invalid enum value 'green'"),
        (Small, "INT64", 10, "Expected `int` <= 9"),
        (list[Small], "INT64", -1, "Expected `int` >= 0"),
        (Annotated[list[int], msgspec.Meta(min_length=2)], "INT64", 1, "length >= 2"),
    ],
)
def test_what_does_not_fit_the_type_is_the_clients_fault(
    annotation: Any, datatype: str, element: Any, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^the input 'value' does not fit: .*{problem}"):
        called(taking(annotation), Tensor("value", datatype, [1], data=[element]))


def test_a_shape_of_many_empty_lists_takes_no_memory() -> None:
    handler = taking(list[list[int]])

    called(handler, Tensor("value", "INT64", [1 << 20, 0], data=[]))

    assert handler.got == []


def test_an_empty_list_has_the_dimensions_of_its_type() -> None:
    assert called(giving(list[list[int]], [])).outputs[0].shape == (0, 0)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (int, 1.5, "1.5, which is no INT64"),
        (int, None, "None, which is no INT64"),
        (list[int], 5, "is a int: return a list"),
        (list[list[int]], [[1], [1, 2]], "is ragged"),
        (list[list[int]], [1], r"the shape \[1\], and declared as \[-1, -1\]"),
        (dict, [1], "is a list and no dict"),
        (Item, {"name": "a"}, "is a dict and no Item"),
        (dict, {"a": Strange()}, "holds a Strange, which JSON has no form for"),
        (NDArray[numpy.float32], [[1], [1, 2]], "inhomogeneous"),
        (numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]], ARRAY, r"the shape \[1, 2\]"),
        (None, 5, "returned a int, and is annotated to return None"),
        (Outputs, [1], "returned a list: return a dict of its outputs"),
        (Outputs, {"other": 1}, "'other', which it does not declare"),
    ],
)
def test_a_result_that_is_not_of_its_type_names_the_model(annotation: Any, value: Any, problem: str) -> None:
    with pytest.raises(OutputFailed, match=f"^m.*{problem}"):
        called(giving(annotation, value))


def test_json_may_hold_numbers_and_arrays_of_numpy() -> None:
    answer = called(giving(dict, {"n": numpy.float32(0.5), "a": ARRAY}))

    assert answer["output"].data == [b'{"n":0.5,"a":[[1.5,2.5]]}']


def test_a_typed_dict_names_several_outputs_of_which_some_may_be_missing() -> None:
    handler = giving(Outputs, {"total": 3})

    assert [(spec.name, spec.optional) for spec in card_of(handler).outputs] == [("total", True), ("words", True)]
    assert called(handler)["total"].data == [3]


def test_a_result_of_none_leaves_an_optional_output_out() -> None:
    handler = giving(str | None, None)

    assert card_of(handler).outputs == [TensorSpec("output", "BYTES", (1,), optional=True)]
    assert called(handler).outputs == []


def test_an_answer_may_be_made_by_the_handler() -> None:
    response = ModelInferResponse([Tensor("a", "INT8", [1], data=[1])], {"p": 1})

    answer = called(giving(ModelInferResponse, response))

    assert (answer.outputs, answer.parameters) == (response.outputs, response.parameters)
    assert called(giving(int, ModelInferResponse([Tensor("output", "INT64", [1], data=[1])])))["output"].data == [1]


def test_the_context_is_no_input_wherever_it_stands() -> None:
    def first(context: Context, a: int) -> str:
        return f"{type(context).__name__} {a}"

    async def last(a: int, anything: AsyncContext | None = None, *, scale: int = 2, own=7) -> str:
        return f"{type(anything).__name__} {a * scale * own}"

    a = Tensor("a", "INT64", [1], data=[4])

    assert called(first, a)["output"].data == [b"Context 4"]
    assert called(last, a, Tensor("scale", "INT64", [1], data=[5]))["output"].data == [b"AsyncContext 140"]
    assert [spec.name for spec in card_of(last).inputs] == ["a", "scale"]


def test_positional_parameters_and_partials_are_called_as_they_are_written() -> None:
    def subtract(a: int, b: int, /) -> int:
        return a - b

    def greet(greeting: str, name: str) -> str:
        return f"{greeting} {name}"

    numbers = [Tensor("b", "INT64", [1], data=[1]), Tensor("a", "INT64", [1], data=[3])]

    assert called(subtract, *numbers)["output"].data == [2]
    assert called(functools.partial(greet, "Hi"), Tensor("name", "BYTES", [1], ["A"]))["output"].data == [b"Hi A"]
    assert [spec.name for spec in card_of(functools.partial(greet, name="A")).inputs] == ["greeting"]


def test_generators_give_an_answer_for_each_value_that_they_yield() -> None:
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    async def count_async(n: int) -> AsyncIterator[int]:
        for number in range(n):
            await asyncio.sleep(0)
            yield number

    for handler in (count, count_async):
        answers = called(handler, Tensor("n", "INT64", [1], data=[3]))
        assert [answer["output"].data for answer in answers] == [[0], [1], [2]]


def test_a_handler_from_text_to_text_is_a_model_that_generates() -> None:
    def spell(text_input: str, n: int = 1) -> Iterator[str]:
        yield from text_input

    card = card_of(spell)

    assert (card.outputs, card.unary) == ([TensorSpec("text_output", "BYTES", (1,))], "join")


def test_a_class_takes_its_inputs_in_handle() -> None:
    app = App("typed")

    @app.worker(models=["m"])
    class Adder(Worker):
        def on_start(self) -> None:
            self.total = 0

        def handle(self, n: int) -> int:  # type: ignore[override]
            self.total += n
            return self.total

    request = ModelInferRequest([Tensor("n", "INT64", [1], data=[2])])

    assert [app.test_call("m", request)["output"].data for _ in range(2)] == [[2], [4]]  # type: ignore[index,call-overload]


def plain_context(request, context: Strange) -> Any: ...


def of_requests(requests: list[ModelInferRequest], contexts: list[Context]) -> list[Any]: ...


def bare_requests(requests: list, contexts: list[Any]) -> list: ...


def keyword(request: Any, *, scale: int = 2) -> Any: ...


def unread(request: Unknown, context: Unknown) -> Any: ...


@pytest.mark.parametrize("handler", [plain_context, of_requests, bare_requests, keyword, unread])
def test_a_handler_of_requests_stays_one_whatever_its_types_are(handler: Any) -> None:
    group = registered(handler).pools()[0].groups[0]

    assert group.signature.typed is None


def half(a: int, b) -> int: ...


def with_request(request: ModelInferRequest, b: int) -> int: ...


def no_result(a: int): ...


def strange_input(a: Strange) -> int: ...


def strange_inside(a: int, b: dict[str, list[Strange]]) -> int: ...


def strange_output(a: int) -> Strange: ...


def any_array(a: numpy.ndarray) -> int: ...


def complex_array(a: NDArray[numpy.complex64]) -> int: ...


def unread_beside(a: int, b: Unknown) -> int: ...


def unread_output(a: int) -> Unknown: ...


def marked(a: Annotated[int, pydantic.Field(ge=0)]) -> int: ...


def bare_generator(a: int) -> int:
    yield 1  # type: ignore[misc]


async def wrong_iterator(a: int) -> Iterator[int]:  # type: ignore[misc]
    yield 1


def no_generator(a: int) -> Iterator[int]: ...


def with_stream(a: int, context: Context, stream) -> int: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (half, "half takes inputs by their types, and 'b' has no type: write it as (request)"),
        (with_request, "with_request takes inputs by their types, and 'request' is no input by its type"),
        (no_result, "no_result takes inputs by their types, and what it returns has no type: annotate it, as -> float"),
        (strange_input, "strange_input: the input 'a': no tensor and no JSON holds a Strange"),
        (strange_inside, "strange_inside: the input 'b': no tensor and no JSON holds a Strange"),
        (strange_output, "strange_output: what it returns: no tensor and no JSON holds a Strange"),
        (any_array, "the input 'a': an array needs a type that tensors have, as numpy.typing.NDArray[numpy.float32]"),
        (complex_array, "the input 'a': an array needs a type that tensors have"),
        (unread_beside, "'b' has the type 'Unknown', which cannot be read (name 'Unknown' is not defined)"),
        (unread_output, "what it returns has the type 'Unknown', which cannot be read"),
        (marked, "the input 'a': Annotated has FieldInfo(annotation=NoneType, required=True, metadata=[Ge(ge=0)])"),
        (bare_generator, "bare_generator is a generator: annotate what it yields, as -> Iterator[str]"),
        (wrong_iterator, "wrong_iterator is a async generator: annotate what it yields, as -> AsyncIterator[str]"),
        (no_generator, "no_generator is a function, and annotated to return an iterator: `yield` each answer"),
        (with_stream, "with_stream takes inputs by their types, and 'stream' has no type"),
    ],
)
def test_a_signature_that_cannot_be_read_says_what_is_meant(handler: Any, problem: str) -> None:
    with pytest.raises(AppError) as error:
        registered(handler)

    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"inputs": [TensorSpec("value", "INT64", [1])]}, "leave out `inputs` and `outputs`"),
        ({"outputs": [TensorSpec("value", "INT64", [1])]}, "leave out `inputs` and `outputs`"),
        ({"batch": {"max_size": 2}}, "a batch is a list of requests"),
    ],
)
def test_types_stand_in_place_of_declarations(options: Any, problem: str) -> None:
    with pytest.raises(AppError, match=f"^m: .*{problem}"):
        registered(taking(int), **options)
