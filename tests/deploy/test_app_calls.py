"""Every handler of the example applications, through App.test_call."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from corosrv.worker import App, Cancelled, InvalidInput, ModelInferRequest, Tensor

FOLDER = Path(__file__).parents[2] / "deploy" / "app"


def load(example: str) -> App:
    spec = importlib.util.spec_from_file_location(f"example_{example}", FOLDER / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where types look for each other
    spec.loader.exec_module(module)
    app: App = module.app
    return app


def tensor(name: str, datatype: str, *data: Any) -> Tensor:
    return Tensor(name, datatype, [len(data)], data=data)


# An example and its handler, the inputs, and the data of the outputs: a list of them for a handler that streams.
CALLS: list[tuple[str, str, list[Tensor], Any]] = [
    ("basic", "add", [tensor("a", "INT32", 1, 2), tensor("b", "INT32", 10, 20)], {"sum": [11, 22]}),
    ("basic", "norm", [tensor("point", "FP64", 3.0, 4.0)], {"length": [5.0]}),
    ("basic", "counter", [], {"n_calls": [1]}),
    ("streaming", "spell", [tensor("text_input", "BYTES", "a b")], [{"text_output": [b"a"]}, {"text_output": [b" b"]}]),
    ("streaming", "ticker", [tensor("count", "INT32", 2)], [{"tick": [0]}, {"tick": [1]}]),
    ("multi_stage", "embed", [tensor("texts", "BYTES", "a")], {"vectors": [1.0, *[0.0] * 25]}),
    ("multi_stage", "rank", [Tensor("vectors", "FP32", [2, 1], data=[1, 2])], {"order": [0]}),
    (
        "multi_stage",
        "search",
        [tensor("query", "BYTES", "cold"), tensor("documents", "BYTES", "a hot day", "cold rain")],
        {"results": [b"cold rain", b"a hot day"]},
    ),
    ("typed", "scale", [tensor("numbers", "FP64", 1.0, 2.0)], {"output": [2.0, 4.0]}),
    (
        "typed",
        "bill",
        [tensor("orders", "BYTES", '{"item":"tea","price":2.5,"count":2}', '{"item":"cup","price":1.0}')],
        {"total": [6.0], "items": [b"tea", b"cup"]},
    ),
    ("typed", "outer", [tensor("a", "FP64", 1, 2), tensor("b", "FP64", 3, 4)], {"output": [3.0, 4.0, 6.0, 8.0]}),
    ("typed", "shout", [tensor("text_input", "BYTES", "a b")], [{"text_output": [b"A "]}, {"text_output": [b"B "]}]),
]


def data_of(answer: Any) -> Any:
    if isinstance(answer, list):
        return [data_of(part) for part in answer]
    return {output.name: output.data for output in answer.outputs}


@pytest.mark.parametrize(("example", "name", "inputs", "outputs"), CALLS)
def test_a_handler_of_an_example_answers_without_a_server(
    example: str, name: str, inputs: list[Tensor], outputs: Any
) -> None:
    assert data_of(load(example).test_call(name, ModelInferRequest(inputs))) == outputs


def test_every_handler_of_every_example_is_called() -> None:
    examples = [path.stem for path in FOLDER.glob("*.py")]
    handlers = {(example, card.name) for example in examples for pool in load(example).pools() for card in pool.cards()}

    assert {(example, name) for example, name, _, _ in CALLS} == handlers


def test_an_earlier_version_and_a_batch_are_called_too() -> None:
    point = ModelInferRequest([tensor("point", "FP64", 3.0, 4.0)])
    texts = [ModelInferRequest([tensor("texts", "BYTES", text)]) for text in ("a", "bb")]

    answers: Any = load("multi_stage").test_call("embed", texts)

    assert data_of(load("basic").test_call("norm", point, version="1")) == {"length": [7.0]}
    assert [answer["vectors"].data[:2] for answer in answers] == [[1.0, 0.0], [0.0, 2.0]]


def test_what_an_example_refuses_is_the_clients_fault() -> None:
    with pytest.raises(InvalidInput, match="a has 1 elements and b has 2"):
        load("basic").test_call("add", ModelInferRequest([tensor("a", "INT32", 1), tensor("b", "INT32", 1, 2)]))
    order = tensor("orders", "BYTES", '{"item":"tea","price":1.0,"count":0}')
    with pytest.raises(InvalidInput, match=r"the input 'orders' does not fit: Expected `int` >= 1 - at `\$.count`"):
        load("typed").test_call("bill", ModelInferRequest([order]))


@pytest.mark.parametrize(
    ("name", "one"), [("spell", tensor("text_input", "BYTES", "a b " * 9)), ("ticker", tensor("count", "INT32", 99))]
)
def test_a_stream_ends_when_its_client_leaves(name: str, one: Tensor) -> None:
    with pytest.raises(Cancelled):
        load("streaming").test_call(name, ModelInferRequest([one]), cancel_after_ms=60)
