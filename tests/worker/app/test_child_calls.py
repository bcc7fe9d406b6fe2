"""Calls of handlers: the real child, over real channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corosrv.wire.calls import CallEnd
from tests.support.app_child import AppChildProcess, number, write_app

APP = """
    import threading

    @app.model("add", inputs=[TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])],
               outputs=[TensorSpec("sum", "INT32", [-1])])
    def add(request):
        return {"sum": [a + b for a, b in zip(request.get_input("a").data, request.get_input("b").data)]}

    @app.model("echo", version="2")
    def echo(request, context):
        response = ModelInferResponse(request.inputs, request.parameters)
        response.parameters["seen"] = (
            f"{request.model_name} {request.model_version} {request.id} {context.request_id} {context.worker_id} "
            f"{context.attempt} {context.remaining() is None}"
        )
        return response
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppChildProcess]:
    directory: Path = tmp_path_factory.mktemp("app")
    with AppChildProcess(write_app(directory, APP), directory) as child:
        child.start()
        yield child


def test_a_function_answers(child: AppChildProcess) -> None:
    answer = child.call("add", number("a", 1, 2), number("b", 3, 4))

    assert answer.only == {"sum": [4, 6]}


def test_a_handler_is_told_what_the_call_says(child: AppChildProcess) -> None:
    answer = child.call("echo", number("x", 1), attempt=2, parameters={"unit": "m", "is_good": True})

    assert answer.only == {"x": [1]}
    assert answer.parameters == [{"unit": "m", "is_good": True, "seen": "echo 2 r0 request-0 default/0 2 True"}]
    assert isinstance(answer.end, CallEnd)
