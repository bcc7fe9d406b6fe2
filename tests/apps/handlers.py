"""Handlers of every kind, for tests of the worker that runs them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from corosrv.worker import (
    App,
    AsyncContext,
    Cancelled,
    Context,
    DeadlineExceeded,
    InvalidInput,
    ModelInferRequest,
    ModelInferResponse,
    NotFound,
    Tensor,
    TensorSpec,
    Unavailable,
)

app = App("handlers")

N = [TensorSpec("n", "INT32", [-1])]
NAPS = 1000  # of a hundredth of a second, after which a test has failed anyway


def value(request: ModelInferRequest, name: str = "n") -> int:
    tensor = request.get_input(name)
    assert tensor is not None
    return int(tensor.data[0])


@app.model("add", inputs=[TensorSpec("a", "INT32", [-1]), TensorSpec("b", "INT32", [-1])], outputs=N)
def add(request: Any) -> Any:
    return {"n": [a + b for a, b in zip(request.get_input("a").data, request.get_input("b").data, strict=True)]}


@app.model("echo", version="2")
def echo(request: Any, context: Any) -> Any:
    response = ModelInferResponse(request.inputs, request.parameters)
    response.parameters["seen"] = (
        f"{request.model_name} {request.model_version} {request.id} {context.request_id} {context.worker_id} "
        f"{context.attempt} {context.remaining() is None}"
    )
    return response


@app.capability(type="double", size=8)
@app.model("double", outputs=N)
@app.model("twice", outputs=N)
def double(request: Any) -> Any:
    return {"n": [2 * value(request)]}


@app.model("coroutine", outputs=N, concurrency=8)
async def coroutine(request: Any, context: AsyncContext) -> Any:
    """Returns how many calls ran when the last of `n` had come."""
    global n_coroutines, all_have_come
    n_coroutines += 1
    if n_coroutines == 1:
        all_have_come = asyncio.Event()
    if n_coroutines == value(request):
        all_have_come.set()
    await all_have_come.wait()
    n_coroutines -= 1
    return {"n": [value(request)]}


n_coroutines = 0
all_have_come: asyncio.Event


@app.model("pair", outputs=N, concurrency=2)
def pair(request: Any) -> Any:
    """Returns when two calls run at once, each in a thread of its own."""
    both.wait(10)
    return {"n": [threading.get_native_id()]}


both = threading.Barrier(2)


@app.model("single", outputs=N)
def single(request: Any) -> Any:
    """Returns how many calls of this run at once."""
    global n_single
    n_single += 1
    time.sleep(0.01)
    seen, n_single = n_single, n_single - 1
    return {"n": [seen]}


n_single = 0


@app.model("count", outputs=N)
def count(request: Any, context: Context) -> Iterator[Any]:
    """Yields n numbers; sent from a `finally`: the end of a generator that is closed."""
    try:
        for number in range(value(request)):
            print(f"at {number}")
            yield {"n": [number]}
    finally:
        print("closed", flush=True)


@app.model("count_async", outputs=N)
async def count_async(request: Any) -> AsyncIterator[Any]:
    try:
        for number in range(value(request)):
            print(f"at {number}")
            await asyncio.sleep(0)
            yield {"n": [number]}
    finally:
        print("closed", flush=True)


@app.model("count_stream", outputs=N)
def count_stream(request: Any, context: Any, stream: Any) -> None:
    for number in range(value(request)):
        print(f"at {number}")
        stream.send({"n": [number]})


@app.model("final")
def final(request: Any) -> Iterator[Any]:
    yield ModelInferResponse([Tensor("n", "INT32", [1], data=[1])], final=True)


@app.model("wide_count")
def wide_count(request: Any) -> Iterator[Any]:
    """Yields n answers of 100,000 bytes, and prints how many were taken."""
    for number in range(value(request)):
        yield ModelInferResponse([Tensor("n", "UINT8", [100_000], raw=bytes(100_000))])
        print(f"took {number}", file=sys.__stderr__)


@app.model("wide_count_async")
async def wide_count_async(request: Any) -> AsyncIterator[Any]:
    for _ in range(value(request)):
        yield ModelInferResponse([Tensor("n", "UINT8", [100_000], raw=bytes(100_000))])


@app.model("batch", outputs=N, batch={"max_size": 4, "max_delay_ms": 1})
def batch(requests: list[Any], contexts: list[Context]) -> list[Any]:
    """Answers with n; a negative one is an error; 99 makes the list too short, and 98 raises."""
    numbers = [value(request) for request in requests]
    if 98 in numbers:
        raise ValueError("all of them")
    print("batch", *(context.request_id for context in contexts))
    while 97 in numbers and not contexts[0].cancelled:
        time.sleep(0.01)
    answers = [
        InvalidInput(f"{n} is negative") if n < 0 else {"n": [n], "x": []} if n == 96 else {"n": [n]} for n in numbers
    ]
    return answers[1:] if 99 in numbers else answers


@app.model("batch_async", outputs=N, batch={"max_size": 4})
async def batch_async(requests: list[Any]) -> list[Any]:
    return [{"n": [value(request)]} for request in requests]


@app.model("wait", outputs=N)
def wait(request: Any, context: Context) -> Any:
    """Waits until it is cancelled; n says how it learns of that."""
    print("waits", flush=True)
    if value(request) == 0:
        context.sleep(60)
    for _ in range(NAPS):
        if value(request) == 1:
            context.check()
        elif context.cancelled:
            return {"n": [value(request)]}
        time.sleep(0.01)
    return {"n": [-1]}


@app.model("wait_async", outputs=N)
async def wait_async(request: Any, context: AsyncContext) -> Any:
    print("waits", flush=True)
    try:
        if value(request) == 0:
            await context.sleep(60)
        await asyncio.sleep(60)
    except BaseException as error:
        print(type(error).__name__, context.cancelled, flush=True)
        if value(request) == 2:
            return {"n": [2]}
        raise
    return {"n": [-1]}


@app.model("burn", outputs=N)
def burn(request: Any, context: Context) -> Any:
    """Keeps the interpreter as busy as Python code can, until it is cancelled."""
    print("burns", flush=True)
    end = time.monotonic() + 30
    while not context.cancelled and time.monotonic() < end:
        pass
    return {"n": [0]}


@app.model("burn_loop", outputs=N)
async def burn_loop(request: Any, context: AsyncContext) -> Any:
    """Keeps the event loop, until it is cancelled."""
    print("burns", flush=True)
    end = time.monotonic() + 30
    while not context.cancelled and time.monotonic() < end:
        time.sleep(0.001)
    return {"n": [0]}


ERRORS: dict[int, BaseException] = {
    1: InvalidInput("n is wrong"),
    2: NotFound("no such n"),
    3: Unavailable("come back"),
    4: Cancelled("never mind"),
    5: DeadlineExceeded("too late"),
    6: ValueError("a secret"),
    7: SystemExit(3),
    8: KeyboardInterrupt(),
    9: asyncio.CancelledError(),
    10: GeneratorExit(),
    11: StopIteration(),
}


@app.model("fail", outputs=N)
def fail(request: Any) -> Any:
    raise ERRORS[value(request)]


@app.model("fail_async", outputs=N)
async def fail_async(request: Any) -> Any:
    await asyncio.sleep(0)
    raise ERRORS[value(request)]


@app.model("fail_late", outputs=N)
def fail_late(request: Any) -> Iterator[Any]:
    yield {"n": [0]}
    raise ERRORS[value(request)]


NONSENSE: dict[int, Any] = {
    1: None,
    2: 17,
    3: "text",
    4: {"m": [1]},
    5: {"n": ["one"]},
    6: {"n": [2**31]},
    7: {"n": 3},
    8: {1: [2]},
    9: ModelInferResponse([Tensor("n", "INT64", [1], data=[1])]),
    10: ModelInferResponse([Tensor("n", "INT32", [1, 1], data=[1])]),
    11: ModelInferResponse(["n"]),  # type: ignore[list-item]
    12: ModelInferResponse([Tensor("n", "INT32", [1], data=[1])] * 2),
    13: ModelInferResponse([], {"p": [1]}),  # type: ignore[dict-item]
    14: ModelInferResponse([], {"p": 2**70}),
    15: ModelInferResponse([], {"p": "\ud800"}),
    16: ModelInferResponse([], {"p": "x" * 9_000_000}),
    17: [{"n": [1]}],
}


@app.model("nonsense", outputs=N)
def nonsense(request: Any) -> Any:
    return NONSENSE[value(request)]


@app.model("nonsense_stream", outputs=N)
def nonsense_stream(request: Any) -> Iterator[Any]:
    yield {"n": [0]}
    yield NONSENSE[value(request)]


@app.model("print", outputs=N)
def print_much(request: Any, context: Context) -> Any:
    """Prints n lines of a thousand characters, from Python, from C, from a thread and to the log."""
    context.log.info("logged")
    thread = threading.Thread(target=print, args=("from a thread",))
    thread.start()
    thread.join()
    os.system("echo from a child")
    for _ in range(value(request)):
        print("x" * 999)
    return {"n": [1]}


@app.model("print_async", outputs=N)
async def print_async(request: Any) -> Any:
    print("from a coroutine")
    return {"n": [1]}


let_threads_go = threading.Semaphore(0)


@app.model("let_go", outputs=N)
def let_go(request: Any) -> Any:
    """Lets one call or thread go on that waits for this."""
    let_threads_go.release()
    return {"n": [1]}


@app.model("print_later", outputs=N)
def print_later(request: Any) -> Any:
    """Prints when the call is over, and another has let it go on."""

    def work() -> None:
        let_threads_go.acquire(timeout=10)
        print("too late", flush=True)

    threading.Thread(target=work).start()
    return {"n": [1]}


@app.model("fork", outputs=N)
def fork(request: Any) -> Any:
    """Forks a copy that returns, raises or exits as n says; answers with the copy's exit code."""
    pid = os.fork()
    if not pid:
        if value(request) == 1:
            raise ValueError("in the copy")
        if value(request) == 2:
            raise SystemExit(7)
        return {"n": [1]}
    return {"n": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]}


@app.model("fork_async", outputs=N)
async def fork_async(request: Any) -> Any:
    pid = os.fork()
    if not pid:
        await asyncio.sleep(0)
    return {"n": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]}


@app.model("fork_yields", outputs=N)
def fork_yields(request: Any) -> Iterator[Any]:
    pid = os.fork()
    if not pid:
        yield {"n": [1]}
    yield {"n": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]}


@app.model("terminate_copy", outputs=N)
def terminate_copy(request: Any) -> Any:
    """Answers with how a forked copy ends that gets SIGTERM."""
    pid = os.fork()
    if not pid:
        time.sleep(60)
    os.kill(pid, 15)
    return {"n": [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]}


@app.model("exit", outputs=N)
def exit_at_once(request: Any) -> Any:
    os._exit(value(request))


@app.model("close_descriptors", outputs=N)
def close_descriptors(request: Any) -> Any:
    os.closerange(value(request), 4096)
    return {"n": [1]}


@app.model("close_descriptors_async", outputs=N)
async def close_descriptors_async(request: Any) -> Any:
    os.closerange(value(request), 4096)
    return {"n": [1]}


@app.model("exit_task", outputs=N)
async def exit_task(request: Any) -> Any:
    """Starts a task that calls sys.exit()."""

    async def leave() -> None:
        sys.exit(1)

    task = asyncio.ensure_future(leave())
    try:
        await task
    except BaseException as error:
        return {"n": [int(isinstance(error, SystemExit))]}


@app.model("cancel_all", outputs=N)
async def cancel_all(request: Any) -> Any:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


def kind_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error} ({getattr(error, 'status', None)})"


def outcome(response: Any) -> Any:
    """Says what a handler's own call has answered."""
    seen = f"{response.model_name} {response.model_version} {response.parameters} {response.final}"
    return ModelInferResponse(response.outputs, {"seen": seen})


@app.model("ask")
def ask(request: Any, context: Context) -> Any:
    """Makes the call that the parameters describe, with its own inputs; answers with its answer or error."""
    try:
        return outcome(context.call(inputs={tensor.name: tensor for tensor in request.inputs}, **arguments(request)))
    except Exception as error:
        return ModelInferResponse(parameters={"error": kind_of(error)})


@app.model("ask_async")
async def ask_async(request: Any, context: AsyncContext) -> Any:
    inputs = {tensor.name: tensor for tensor in request.inputs}
    try:
        return outcome(await context.call(inputs=inputs, **arguments(request)))
    except Exception as error:
        return ModelInferResponse(parameters={"error": kind_of(error)})


def arguments(request: Any) -> dict[str, Any]:
    parameters = dict(request.parameters)
    if "type" in parameters:
        parameters["capability"] = {"type": parameters.pop("type")}
    return parameters or {"model": "other"}


@app.model("ask_all")
def ask_all(request: Any, context: Context) -> Any:
    """Makes n calls at once, from threads; answers with their sum."""
    answers: list[int] = []

    def work(number: int) -> None:
        answers.append(context.call(model="other", inputs={"n": [number]}).get_output("n").data[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(value(request))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"n": Tensor("n", "INT64", [1], data=[sum(answers)])}


@app.model("ask_all_async")
async def ask_all_async(request: Any, context: AsyncContext) -> Any:
    calls = [context.call(model="other", inputs={"n": [number]}) for number in range(value(request))]
    answers = [answer.get_output("n").data[0] for answer in await asyncio.gather(*calls)]
    return {"n": Tensor("n", "INT64", [1], data=[sum(answers)])}


@app.model("ask_stream", outputs=[TensorSpec("n", "INT64", [1])])
def ask_stream(request: Any, context: Context) -> Iterator[Any]:
    """Passes on the answers of a call, the first n of them."""
    answers = context.call(model="other", stream=True)
    for number, answer in enumerate(answers, 1):
        yield answer
        if number == value(request):
            break
    answers.close()
    print("closed", flush=True)
    time.sleep(0.01)


@app.model("ask_stream_async", outputs=[TensorSpec("n", "INT64", [1])])
async def ask_stream_async(request: Any, context: AsyncContext) -> AsyncIterator[Any]:
    answers = await context.call(model="other", stream=True)
    number = 0
    async for answer in answers:
        number += 1
        yield answer
        if number == value(request):
            break
    await answers.aclose()
    print("closed", flush=True)
    await asyncio.sleep(0.01)


@app.model("ask_uncaught")
def ask_uncaught(request: Any, context: Context) -> Any:
    return context.call(model="other")


@app.model("ask_uncaught_async")
async def ask_uncaught_async(request: Any, context: AsyncContext) -> Any:
    return await context.call(model="other")


@app.model("ask_later", outputs=N)
def ask_later(request: Any, context: Context) -> Any:
    """Leaves a thread behind that waits for the answer of one call, and then makes another. Ends when it is let go."""

    def work() -> None:
        for _ in range(2):
            try:
                context.call(model="other")
            except Exception as error:
                print(kind_of(error), flush=True)

    threading.Thread(target=work).start()
    let_threads_go.acquire(timeout=10)
    return {"n": [1]}


VALUES: dict[int, Any] = {
    1: b"bytes",
    2: {"a": [1, 2.5, None, "text"]},
    3: "text",
    4: Tensor("t", "INT32", [2, 1], data=[1, 2]),
    5: Tensor("t", "FP32", [], data=[1.5]),
    6: Tensor("t", "UINT8", [2 << 20], raw=b"\x07" * (2 << 20)),
    7: b"\x07" * (2 << 20),
    8: [],
    9: Tensor("t", "BYTES", [2], data=["a", b"\xff"]),
}


@app.model("objects")
def objects(request: Any, context: Context) -> Any:
    """Stores a value, finds it by its key and by its reference, and deletes it; says whether it was the same."""
    stored = VALUES[value(request)]
    ref = context.objects.create(stored, key="k", ttl_s=60)
    by_key = context.objects.lookup("k")
    read = context.objects.get(ref)
    context.objects.delete(ref)
    try:
        context.objects.get(ref.id)
    except Exception as error:
        gone = kind_of(error)
    nobody = context.objects.lookup("k")
    return ModelInferResponse(
        parameters={
            "is_same": same(stored, read),
            "type": ref.content_type,
            "size": ref.size,
            "is_found": by_key == ref,
            "gone": gone,
            "is_nobody": nobody is None,
        }
    )


@app.model("objects_async")
async def objects_async(request: Any, context: AsyncContext) -> Any:
    stored = VALUES[value(request)]
    ref = await context.objects.create(stored, key="k", ttl_s=60)
    by_key = await context.objects.lookup("k")
    read = await context.objects.get(ref)
    await context.objects.delete(ref)
    try:
        await context.objects.get(ref.id)
    except Exception as error:
        gone = kind_of(error)
    nobody = await context.objects.lookup("k")
    return ModelInferResponse(
        parameters={
            "is_same": same(stored, read),
            "type": ref.content_type,
            "size": ref.size,
            "is_found": by_key == ref,
            "gone": gone,
            "is_nobody": nobody is None,
        }
    )


def same(stored: Any, read: Any) -> bool:
    if isinstance(stored, Tensor):
        content = (read.datatype, read.shape, bytes(read.raw))
        return content == (stored.datatype, stored.shape, bytes(stored.raw))
    return type(stored) is type(read) and bool(stored == read)


@app.model("objects_as_inputs")
def objects_as_inputs(request: Any, context: Context) -> Any:
    """Calls another model with an object of bytes and one that is a tensor."""
    inputs = {"b": context.objects.create(b"bytes"), "t": context.objects.create(VALUES[4])}
    return context.call(model="other", inputs=inputs)


@app.model("objects_as_inputs_async")
async def objects_as_inputs_async(request: Any, context: AsyncContext) -> Any:
    inputs = {"b": await context.objects.create(b"bytes"), "t": await context.objects.create(VALUES[4])}
    return await context.call(model="other", inputs=inputs)


@app.model("objects_refused")
def objects_refused(request: Any, context: Context) -> Any:
    """Stores what no object can hold."""
    try:
        context.objects.create(
            {1j} if value(request) == 1 else "text", content_type=None if value(request) == 1 else "a"
        )
    except Exception as error:
        return ModelInferResponse(parameters={"error": kind_of(error)})
