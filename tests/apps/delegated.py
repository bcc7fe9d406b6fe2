"""Handlers of two replicas that call each other: those of `front` ask for what `back` alone has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corosrv.worker import App, Context, ModelInferRequest, ModelInferResponse, TensorSpec, Unavailable

front = App("front")
back = App("back")

N = TensorSpec("n", "INT32", [-1])


@front.model("asks", inputs=[N], concurrency=4)
def ask(request: ModelInferRequest, context: Context) -> ModelInferResponse:
    """Calls the handler or the capability that its parameters name, with its own input."""
    parameters = dict(request.parameters)
    if "type" in parameters:
        parameters["capability"] = {"type": parameters.pop("type")}
    answer = context.call(inputs={"n": request["n"]}, **parameters)
    return ModelInferResponse(answer.outputs, {"answered_by": answer.model_name})


@front.model("asks_stream", inputs=[N], outputs=[N])
def ask_stream(request: ModelInferRequest, context: Context) -> Iterator[dict[str, Any]]:
    for answer in context.call(model="counts", inputs={"n": request["n"]}, stream=True):
        yield {"n": [10 * answer["n"].data[0]]}


@back.model("double", version="2", inputs=[N], outputs=[N])
def double(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": [2 * number for number in request["n"].data]}


@back.capability(type="half", inputs=[N], outputs=[N])
def halve(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": [number // 2 for number in request["n"].data]}


@back.model("tells")
def tell(request: ModelInferRequest, context: Context) -> ModelInferResponse:
    """Tells what it knows of its call."""
    left = context.remaining()
    told = {"request": context.request_id, "left": -1.0 if left is None else left, "id": request.id}
    return ModelInferResponse(request.inputs, {**request.parameters, **told})


@back.model("both", inputs=[N], outputs=[N])
def pass_on(request: ModelInferRequest) -> dict[str, Any]:
    return {"n": request["n"].data}


@back.model("counts", inputs=[N], outputs=[N], concurrency=4)
def count(request: ModelInferRequest, context: Context) -> Iterator[dict[str, Any]]:
    """Counts up to its input; without an end if that is negative, and in vain behind 2 if it is 13."""
    last, number = request["n"].data[0], 0
    while number != last:
        if last == 13 and number == 2:
            raise Unavailable("thirteen brings no luck")
        yield {"n": [number]}
        number += 1
        context.sleep(0.05 if last < 0 else 0)


@back.model("waits", inputs=[N], max_queue=1)
def wait(request: ModelInferRequest, context: Context) -> dict[str, Any]:
    context.sleep(60)
    return {}


@back.model("asks_back", inputs=[N])
def ask_back(request: ModelInferRequest, context: Context) -> Any:
    return context.call(model="asks", inputs={"n": request["n"]}, parameters={"model": "double"})
