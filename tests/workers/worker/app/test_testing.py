"""Handlers run in the process of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from corosrv.base.errors import InvalidTensor, NotOffered, OutputFailed
from corosrv.worker import (
    App,
    AsyncContext,
    Cancelled,
    Conflict,
    Context,
    DeadlineExceeded,
    HandlerFailed,
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


@pytest.fixture
def services() -> App:
    """Handlers that use what a server gives them."""
    app = App("services")

    @app.model("declared", inputs=N, outputs=N)
    def declared(request: Any) -> Any:
        return {"n": request["n"].data} if request["n"].data != [0] else {}

    @app.model("batch", outputs=N, batch={"max_size": 4})
    def batch(requests: Any) -> Any:
        return [InvalidInput("no") if request["n"].data == [0] else {"n": [7]} for request in requests]

    @app.model("fails")
    def fails(request: Any) -> Any:
        raise KeyError("secret")

    @app.model("streams", outputs=[TensorSpec("text_output", "BYTES", [1])])
    def streams(request: Any) -> Iterator[Any]:
        yield {"text_output": ["a"]}
        yield {"text_output": ["b"]}

    @app.model("streams_only", outputs=N)
    def streams_only(request: Any) -> Iterator[Any]:
        yield {"n": [1]}

    @app.model("calls")
    def calls(request: ModelInferRequest, context: Context) -> Any:
        model = str(request.parameters["model"])
        return context.call(model=model, inputs={"n": Tensor("n", "INT32", [1], data=[0])})

    @app.model("calls_async")
    async def calls_async(request: ModelInferRequest, context: AsyncContext) -> Any:
        return await context.call(model="calls", parameters=request.parameters)

    @app.model("itself")
    def itself(request: Any, context: Context) -> Any:
        return context.call(model="itself")

    @app.model("waits")
    def waits(request: Any, context: Context) -> Any:
        context.sleep(60)

    @app.model("waits_async")
    async def waits_async(request: Any) -> Any:
        await asyncio.sleep(60)

    @app.model("waits_in_time", timeout_ms=10)
    def waits_in_time(request: Any, context: Context) -> Any:
        context.sleep(60)

    @app.model("waits_for_others")
    async def waits_for_others(request: Any, context: AsyncContext) -> Any:
        await context.call(model="waits")

    @app.model("ticks", outputs=N)
    def ticks(request: Any, context: Context) -> Iterator[Any]:
        while True:
            yield {"n": [1]}

    @app.model("stores")
    def stores(request: ModelInferRequest, context: Context) -> Any:
        ref = context.objects.create(Tensor("any", "UINT8", [1 << 17], raw=b"\7" * (1 << 17)), key="k")
        context.objects.create({"small": [1]}, key="s")
        return context.call(model="sums", inputs={"value": ref})

    @app.model("sums")
    async def sums(request: ModelInferRequest, context: AsyncContext) -> Any:
        ref = await context.objects.lookup("k")
        assert ref is not None
        read = await context.objects.get(ref)
        assert read.raw == request["value"].raw
        return ModelInferResponse(parameters={"sum": sum(read.raw)})

    @app.model("finds")
    def finds(request: ModelInferRequest, context: Context) -> Any:
        ref = context.objects.lookup("s")
        assert ref is not None
        value = context.objects.get(ref)
        context.objects.delete(ref)
        return ModelInferResponse(
            parameters={"small": value["small"][0], "is_gone": context.objects.lookup("s") is None}
        )

    return app


def calling(model: str) -> ModelInferRequest:
    return ModelInferRequest(parameters={"model": model})


def test_declared_inputs_and_outputs_are_checked(services: App) -> None:
    with pytest.raises(InvalidTensor, match="'n' is missing"):
        services.test_call("declared", ModelInferRequest())
    with pytest.raises(InvalidTensor, match="has the datatype INT8"):
        services.test_call("declared", ModelInferRequest([Tensor("n", "INT8", [1], data=[1])]))
    with pytest.raises(HandlerFailed, match="gave no output 'n', which it declares"):
        services.test_call("declared", ModelInferRequest([Tensor("n", "INT32", [1], data=[0])]))


def test_only_the_outputs_that_were_asked_for_are_given(services: App) -> None:
    request = ModelInferRequest(REQUEST.inputs, requested_outputs=["n"])

    assert numbers([services.test_call("declared", request)]) == [3]  # type: ignore[list-item]
    with pytest.raises(HandlerFailed, match="no output 'm'"):
        services.test_call("declared", ModelInferRequest(REQUEST.inputs, requested_outputs=["m"]))


@pytest.mark.parametrize("caller", ["calls", "calls_async"])
@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("batch", InvalidInput, "^no$"),
        ("fails", HandlerFailed, "^the handler failed; the server's log says why$"),
        ("nobody", NotFound, "no handler 'nobody'"),
        ("streams_only", NotOffered, "only streams"),
        ("declared", HandlerFailed, "gave no output"),
    ],
)
def test_a_handler_gets_the_errors_that_a_server_makes(
    services: App, caller: str, model: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        services.test_call(caller, calling(model))


def test_the_pieces_of_a_stream_are_joined_for_a_handler_that_wants_one_answer(services: App) -> None:
    answer = services.test_call("calls", calling("streams"))

    assert isinstance(answer, ModelInferResponse)
    assert answer["text_output"].data == [b"ab"]


def test_a_handler_that_would_wait_for_itself_is_refused(services: App) -> None:
    with pytest.raises(Conflict, match="the call of itself would wait for a slot"):
        services.test_call("itself", ModelInferRequest())


@pytest.mark.parametrize("name", ["waits", "waits_async", "waits_for_others", "ticks"])
def test_a_call_ends_at_its_deadline_or_when_it_is_cancelled(services: App, name: str) -> None:
    with pytest.raises(DeadlineExceeded):
        services.test_call(name, ModelInferRequest(), timeout_ms=20)
    with pytest.raises(Cancelled):
        services.test_call(name, ModelInferRequest(), cancel_after_ms=20)
    with pytest.raises(Cancelled):
        services.test_call(name, ModelInferRequest(), cancel_after_ms=0)


def test_the_handlers_own_time_holds(services: App) -> None:
    with pytest.raises(DeadlineExceeded):
        services.test_call("waits_in_time", ModelInferRequest())
    with pytest.raises(DeadlineExceeded):
        services.test_call("calls", calling("waits_in_time"))


def test_handlers_pass_objects_to_each_other(services: App) -> None:
    stored: Any = services.test_call("stores", ModelInferRequest())
    found: Any = services.test_call("finds", ModelInferRequest())

    assert stored.parameters == {"sum": 7 << 17}
    assert found.parameters == {"small": 1, "is_gone": True}


def test_a_capability_is_chosen_by_predicates_preferences_and_fuzzy_names() -> None:
    app = App("sizes")

    @app.capability(type="size", size=1, tier="One-Two")
    @app.capability(type="size", size=2, tier="One-Two")
    @app.capability(type="size", size=3, tier="One-Two")
    def sized(request: Any) -> Any:
        return ModelInferResponse()

    @app.model("prefers")
    def prefers(request: ModelInferRequest, context: Context) -> Any:
        answer = context.call(capability={"tier": "One-Two", "size": {"gt": 1}}, prefer={"size>=3": 2.0})
        return ModelInferResponse(parameters={**answer.parameters, "answered_by": answer.model_name})

    @app.model("guesses")
    def guesses(request: ModelInferRequest, context: Context) -> Any:
        return context.call(capability={"tier": "one two", "size": 2}, fuzzy=bool(request.parameters["fuzzy"]))

    preferred: Any = app.test_call("prefers", ModelInferRequest())
    guessed: Any = app.test_call("guesses", ModelInferRequest(parameters={"fuzzy": True}))

    assert preferred.parameters == {
        "capability": '{"type":"size","size":3,"tier":"One-Two"}',
        "answered_by": "sized",
    }
    assert guessed.parameters == {"capability": '{"type":"size","size":2,"tier":"One-Two"}'}
    with pytest.raises(NotFound, match="no capability of the application has"):
        app.test_call("guesses", ModelInferRequest(parameters={"fuzzy": False}))
