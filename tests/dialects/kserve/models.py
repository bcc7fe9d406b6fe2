"""Models for tests: some that any server could have, and some that do as their input says."""

from __future__ import annotations

import gevent

from corosrv.contracts.jobs.infer import HandlerCard, InferOutputs, InferRequest
from corosrv.formats.tensors import Tensor, TensorSpec
from tests.dialects.kserve.generator_worker import Answers, GeneratorWorker, Model

NUMBERS = [TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])]
TEXT = [TensorSpec("text_input", "BYTES", [1])]
TEXT_OUTPUT = [TensorSpec("text_output", "BYTES", [1])]


def add(request: InferRequest) -> Answers:
    """Gives the sums and the differences of two inputs."""
    a, b = (next(tensor for tensor in request.inputs if tensor.name == name) for name in "ab")
    pairs = list(zip(a.data, b.data, strict=True))
    yield InferOutputs(
        (
            Tensor("sum", "INT32", [len(pairs)], data=[x + y for x, y in pairs]),
            Tensor("difference", "INT32", [len(pairs)], data=[x - y for x, y in pairs]),
        )
    )


def echo(request: InferRequest) -> Answers:
    """Gives every input as an output, and every parameter as a parameter."""
    yield InferOutputs(request.inputs, request.parameters)


def sleep(request: InferRequest) -> Answers:
    """Answers after as many seconds as its input says."""
    gevent.sleep(request.inputs[0].data[0])
    yield InferOutputs(())


def words(request: InferRequest) -> Answers:
    """Gives the text back, word by word; `fail_after` and `pause` (seconds) are its parameters."""
    parts = request.inputs[0].data[0].split(b" ")
    for number, word in enumerate(parts):
        if number == request.parameters.get("fail_after"):
            raise RuntimeError("secret words of the handler")
        gevent.sleep(request.parameters.get("pause", 0))
        yield text(word + b" " * (number < len(parts) - 1))


def text(content: bytes, is_final: bool = False) -> InferOutputs:
    return InferOutputs((Tensor("text_output", "BYTES", [1], data=[content]),), is_final=is_final)


def make_worker() -> GeneratorWorker:
    models = [
        Model(
            HandlerCard(
                "add",
                inputs=NUMBERS,
                outputs=[TensorSpec("sum", "INT32", [-1]), TensorSpec("difference", "INT32", [-1])],
            ),
            add,
        ),
        Model(HandlerCard("add", "2", inputs=NUMBERS), add),
        Model(HandlerCard("echo"), echo),
        Model(HandlerCard("sleep", inputs=[TensorSpec("seconds", "FP64", [1])]), sleep),
        Model(HandlerCard("loading"), echo, state="LOADING"),
        Model(HandlerCard("words", inputs=TEXT, outputs=TEXT_OUTPUT, is_stream=True, unary="join"), words),
        Model(HandlerCard("streams", inputs=TEXT, outputs=TEXT_OUTPUT, is_stream=True), words),
        Model(HandlerCard("embed", capability={"type": "embed", "tier": "small", "ctx": 8192}), echo),
    ]
    return GeneratorWorker({model.card.key: model for model in models})
