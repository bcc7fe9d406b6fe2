"""Handlers run in the process of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from corosrv.errors import OutputFailed
from corosrv.worker import (
    App,
    InvalidInput,
    ModelInferRequest,
    ModelInferResponse,
    NotFound,
    Tensor,
    TensorSpec,
    Worker,
)

N = [TensorSpec("n", "INT32", [-1])]
REQUEST = ModelInferRequest([Tensor("n", "INT32", [1], data=[3])], id="r")


@pytest.fixture
def app() -> App:
    app = App("test")

    @app.model("double", outputs=N)
    def double(request: Any, context: Any) -> Any:
        return {"n": [2 * request.get_input("n").data[0]]}

    @app.model("double", version="2", outputs=N)
    async def coroutine(request: Any) -> Any:
        await asyncio.sleep(0)
        return {"n": [4 * request.get_input("n").data[0]]}

    @app.capability(type="count", outputs=N)
    def count(request: Any) -> Iterator[Any]:
        for n in range(request.get_input("n").data[0]):
            yield {"n": [n]}

    @app.model("count_async", outputs=N)
    async def count_async(request: Any) -> AsyncIterator[Any]:
        for n in range(request.get_input("n").data[0]):
            yield {"n": [n]}

    @app.model("stream", outputs=N)
    def stream(request: Any, context: Any, stream: Any) -> None:
        stream.send({"n": [0]})

    @app.model("batch", outputs=N, batch={"max_size": 4})
    def batch(requests: Any) -> Any:
        return [InvalidInput("no") if request.id == "bad" else {"n": [len(requests)]} for request in requests]

    @app.model("chain", outputs=N)
    def chain(request: Any, context: Any) -> Any:
        return context.call(model="double", version="2", inputs={"n": request.get_input("n")})

    @app.model("chain_async", outputs=N)
    async def chain_async(request: Any, context: Any) -> Any:
        answers = await context.call(capability={"type": "count"}, inputs={"n": request.get_input("n")}, stream=True)
        return {"n": [answer.get_output("n").data[0] async for answer in answers]}

    @app.model("chain_to_nobody")
    def chain_to_nobody(request: Any, context: Any) -> Any:
        return context.call(capability={"type": "other"})

    @app.model("broken")
    def broken(request: Any) -> Any:
        return 3

    @app.worker(models=["counter"], outputs=N)
    class Counter(Worker):
        async def on_start(self) -> None:
            self.n = 0

        def handle(self, request: Any) -> Any:
            self.n += 1
            return {"n": [self.n]}

    return app


def numbers(answers: list[ModelInferResponse]) -> list[Any]:
    return [answer.outputs[0].data[0] for answer in answers]


@pytest.mark.parametrize(("version", "n"), [("", 6), ("2", 12)])
def test_a_unary_handler_gives_its_answer(app: App, version: str, n: int) -> None:
    answer = app.test_call("double", REQUEST, version=version)

    assert isinstance(answer, ModelInferResponse)
    tensor = answer.get_output("n")
    assert tensor is not None
    assert tensor.data == [n]
    assert answer.get_output("m") is None


def test_a_handler_without_a_version_is_the_one_that_a_server_would_choose() -> None:
    app = App("versions")

    @app.model("m", version="v9", outputs=N)
    def nine(request: Any) -> Any:
        return {"n": [9]}

    @app.model("m", version="v10", outputs=N)
    def ten(request: Any) -> Any:
        return {"n": [10]}

    answer = app.test_call("m", ModelInferRequest())

    assert isinstance(answer, ModelInferResponse)
    assert answer["n"].data == [10]


@pytest.mark.parametrize(("name", "n"), [("count", [0, 1, 2]), ("count_async", [0, 1, 2]), ("stream", [0])])
def test_a_handler_that_streams_gives_a_list(app: App, name: str, n: list[int]) -> None:
    assert numbers(app.test_call(name, REQUEST)) == n  # type: ignore[arg-type]


def test_a_batch_gives_answers_and_errors(app: App) -> None:
    answers: Any = app.test_call("batch", [REQUEST, ModelInferRequest(id="bad")])

    assert numbers(answers[:1]) == [2]
    assert isinstance(answers[1], InvalidInput)
    with pytest.raises(InvalidInput):
        app.test_call("batch", ModelInferRequest(id="bad"))


def test_a_class_is_started_once_and_keeps_what_it_has(app: App) -> None:
    assert numbers([app.test_call("counter", REQUEST) for _ in range(3)]) == [1, 2, 3]  # type: ignore[list-item]


def test_handlers_call_each_other(app: App) -> None:
    assert numbers([app.test_call("chain", REQUEST)]) == [12]  # type: ignore[list-item]
    assert app.test_call("chain_async", REQUEST).outputs[0].data == [0, 1, 2]  # type: ignore[union-attr]
    with pytest.raises(NotFound, match="no capability of the application has"):
        app.test_call("chain_to_nobody", REQUEST)


def test_wrong_answers_and_names_are_errors(app: App) -> None:
    with pytest.raises(OutputFailed, match="broken returned a int"):
        app.test_call("broken", REQUEST)
    with pytest.raises(NotFound, match="no handler 'nobody'"):
        app.test_call("nobody", REQUEST)
    with pytest.raises(ValueError, match="double takes no batches"):
        app.test_call("double", [REQUEST, REQUEST])
