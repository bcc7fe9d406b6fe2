"""ModelStreamInfer over a real gRPC process: answers, their marks, errors, cancel and flow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gevent
import grpc
import pytest

from corosrv.dialects.kserve.grpc.front import GrpcFront
from corosrv.dialects.kserve.grpc.service import MAX_IN_FLIGHT
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import Stub, infer_request, talk, typed_request, value_of
from tests.dialects.kserve.grpc.conftest import make_worker, serving
from tests.support.function_worker import FunctionCall, FunctionWorker
from tests.support.waiting import wait_until

EMPTY_FINAL = {"triton_enable_empty_final_response": True}


def counting(n: int, model: str = "count", **options: Any) -> Any:
    return infer_request(model, Tensor("n", "INT32", [1], data=[n]), **options)


def is_final(answer: Any) -> bool:
    return bool(value_of(answer.infer_response.parameters["triton_final_response"]))


def number(answer: Any) -> int:
    return int.from_bytes(answer.infer_response.raw_output_contents[0], "little")


async def read_all(stream: Any) -> list[Any]:
    """Returns the rest of a stream that has an end."""
    answers = []
    while (answer := await stream.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers


def exchange(front: GrpcFront, *requests: Any, **options: Any) -> list[Any]:
    """Sends requests on one stream, closes the client's side, and returns all answers."""

    async def scenario(stub: Stub) -> list[Any]:
        stream = stub.stream(**options)
        for request in requests:
            await stream.write(request)
        await stream.done_writing()
        answers = await read_all(stream)
        assert await stream.code() is grpc.StatusCode.OK
        return answers

    return talk(front.port, scenario)


def test_every_chunk_is_an_answer_and_none_is_held_back_to_be_final(front: GrpcFront) -> None:
    answers = exchange(front, counting(3, id="q"))

    assert [(number(answer), is_final(answer)) for answer in answers] == [(0, False), (1, False), (2, False)]
    assert {(answer.infer_response.id, answer.infer_response.model_name) for answer in answers} == {("q", "count")}
    assert not any(answer.error_message for answer in answers)


def test_a_chunk_that_the_handler_marks_is_final(front: GrpcFront) -> None:
    answers = exchange(front, counting(3, "count_final", parameters=EMPTY_FINAL))

    assert [(number(answer), is_final(answer)) for answer in answers] == [(0, False), (1, False), (2, True)]


def test_an_empty_final_answer_comes_if_it_is_asked_for(front: GrpcFront) -> None:
    *chunks, last = exchange(front, counting(2, id="q", parameters=EMPTY_FINAL))

    assert [is_final(answer) for answer in chunks] == [False, False]
    assert is_final(last)
    assert (last.infer_response.id, last.infer_response.model_name) == ("q", "count")
    assert (len(last.infer_response.outputs), len(last.infer_response.raw_output_contents)) == (0, 0)


def test_a_stream_of_no_chunks_has_an_empty_final_answer_only_if_it_is_asked_for(front: GrpcFront) -> None:
    assert exchange(front, counting(0)) == []
    assert [is_final(answer) for answer in exchange(front, counting(0, parameters=EMPTY_FINAL))] == [True]


def test_the_only_answer_of_a_unary_model_is_final(front: GrpcFront, worker: FunctionWorker) -> None:
    (answer,) = exchange(front, counting(7, "echo", parameters=EMPTY_FINAL))

    assert (number(answer), is_final(answer)) == (7, True)
    assert worker.calls[0].job.stream


def test_typed_requests_are_answered_typed(front: GrpcFront) -> None:
    (answer,) = exchange(front, typed_request("echo", Tensor("n", "INT32", [1], data=[7])))

    assert list(answer.infer_response.outputs[0].contents.int_contents) == [7]


def test_requests_of_one_stream_run_side_by_side(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> None:
        stream = stub.stream()
        await stream.write(infer_request("hang", id="slow"))
        await stream.write(counting(2, id="quick"))
        answers = [await stream.read(), await stream.read()]
        assert [answer.infer_response.id for answer in answers] == ["quick", "quick"]
        stream.cancel()

    talk(front.port, scenario)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (infer_request("fail", id="q", parameters={"how": "refused"}), "no such colour"),
        (infer_request("fail", id="q", parameters={"how": "lost"}), "the worker was lost"),
        (infer_request("nobody", id="q"), "nobody"),
        (infer_request("echo", id="q", parameters={"priority": 77}), "priority"),
        (infer_request("add", id="q", version="2"), "'a' is missing"),
        (infer_request("hang", id="q", parameters={"timeout": 20_000}), "time is over"),
    ],
)
def test_a_request_that_fails_has_an_error_and_the_stream_goes_on(front: GrpcFront, request_: Any, words: str) -> None:
    async def scenario(stub: Stub) -> Any:
        stream = stub.stream()
        await stream.write(request_)
        error = await stream.read()
        await stream.write(counting(1))
        return error, await stream.read()

    error, answer = talk(front.port, scenario)

    assert words in error.error_message
    assert (error.infer_response.id, error.infer_response.model_name) == ("q", request_.model_name)
    assert (answer.error_message, number(answer)) == ("", 0)


def test_bytes_that_are_no_message_have_an_error_and_the_stream_goes_on(front: GrpcFront) -> None:
    error, answer = exchange(front, b"\xff\xff\xff", counting(1))

    assert "ModelInferRequest" in error.error_message
    assert number(answer) == 0


def test_a_failure_after_chunks_follows_them(front: GrpcFront) -> None:
    chunk, error = exchange(front, counting(5, "half", id="q", parameters={"how": "bug", **EMPTY_FINAL}))

    assert (number(chunk), is_final(chunk)) == (5, False)
    assert (error.error_message, error.infer_response.id) == ("the handler failed", "q")


def test_a_client_that_closes_its_side_gets_the_answers_that_are_due(front: GrpcFront, worker: FunctionWorker) -> None:
    goes_on = gevent.event.Event()

    def patient(call: FunctionCall) -> None:
        goes_on.wait(10)
        call.send(*call.request.inputs)

    worker.add(patient, "patient")
    hub = gevent.get_hub()

    async def scenario(stub: Stub) -> list[Any]:
        stream = stub.stream()
        await stream.write(counting(1, "patient"))
        await stream.done_writing()
        while not worker.calls:
            await asyncio.sleep(0.001)
        hub.loop.run_callback_threadsafe(goes_on.set)
        return await read_all(stream)

    assert len(talk(front.port, scenario)) == 1


def test_cancelling_a_stream_cancels_all_its_requests(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> None:
        stream = stub.stream()
        for _ in range(5):
            await stream.write(infer_request("hang"))
        while len(worker.calls) < 5:
            await asyncio.sleep(0.001)
        stream.cancel()

    talk(front.port, scenario)

    wait_until(lambda: not worker.n_running)
    assert all(call.cancelled.is_set() for call in worker.calls)


def test_a_client_that_vanishes_cancels_its_requests(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> None:
        stream = stub.stream()
        await stream.write(infer_request("hang"))
        while not worker.calls:
            await asyncio.sleep(0.001)
        await stub._channel.close(None)

    talk(front.port, scenario)

    wait_until(lambda: not worker.n_running)


def test_a_client_that_leaves_its_answers_is_no_fault_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(stub: Stub) -> None:
        for _ in range(20):
            stream = stub.stream()
            for _ in range(3):
                await stream.write(counting(50))
            await stream.read()
            stream.cancel()

    with serving(make_worker()) as front:
        talk(front.port, scenario)
        exchange(front, counting(1))

    assert "Traceback" not in capfd.readouterr().err


def test_so_many_requests_of_a_stream_run_and_the_next_is_read_when_one_has_ended(
    front: GrpcFront, worker: FunctionWorker
) -> None:
    goes_on = gevent.event.Event()

    def patient(call: FunctionCall) -> None:
        goes_on.wait(60)
        call.send(*call.request.inputs)

    worker.add(patient, "patient")
    hub = gevent.get_hub()

    async def scenario(stub: Stub) -> None:
        stream = stub.stream()
        for _ in range(MAX_IN_FLIGHT):
            await stream.write(counting(1, "patient", id="early"))
        await stream.write(counting(1, "echo", id="late"))
        while len(worker.calls) < MAX_IN_FLIGHT:
            await asyncio.sleep(0.001)
        other = await stub.infer(counting(1, "echo"))  # the process has had time for the next one
        assert other.model_name == "echo"
        assert len(worker.calls) == MAX_IN_FLIGHT + 1
        hub.loop.run_callback_threadsafe(goes_on.set)
        ids = [(await stream.read()).infer_response.id for _ in range(MAX_IN_FLIGHT + 1)]
        assert sorted(ids) == ["early"] * MAX_IN_FLIGHT + ["late"]
        stream.cancel()

    talk(front.port, scenario)


def test_a_client_that_does_not_read_stops_its_handler_and_no_other(front: GrpcFront, worker: FunctionWorker) -> None:
    def flood(call: FunctionCall) -> None:
        for _ in range(10_000):
            call.send(Tensor("x", "UINT8", [1 << 14], raw=bytes(1 << 14)))

    worker.add(flood, "flood", is_stream=True)

    async def scenario(stub: Stub) -> int:
        stream = stub.stream()
        await stream.write(infer_request("flood"))
        n_sent = -1
        while not worker.calls or worker.calls[0].n_sent > n_sent:  # until it stands still
            n_sent = worker.calls[0].n_sent if worker.calls else -1
            for _ in range(20):
                await stub.infer(counting(1, "echo"))
        stream.cancel()
        return n_sent

    assert talk(front.port, scenario) < 5_000
    wait_until(lambda: not worker.n_running)


def test_answers_that_are_written_at_once_all_arrive_in_the_order_of_their_requests(
    front: GrpcFront, worker: FunctionWorker
) -> None:
    def pour(call: FunctionCall) -> None:
        for place in range(30):
            call.send(Tensor("x", "UINT8", [1 << 15], raw=bytes([place]) * (1 << 15)))

    worker.add(pour, "pour", is_stream=True)

    answers = exchange(front, *(infer_request("pour", id=str(n)) for n in range(20)))

    places: dict[str, list[int]] = {}
    for answer in answers:
        places.setdefault(answer.infer_response.id, []).append(answer.infer_response.raw_output_contents[0][0])
    assert places == {str(n): list(range(30)) for n in range(20)}


def test_two_hundred_streams_run_at_once_on_few_threads(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> tuple[list[list[int]], int]:
        streams = [stub.stream() for _ in range(200)]
        for stream in streams:
            await stream.write(counting(1))
        firsts = [number(await stream.read()) for stream in streams]
        assert firsts == [0] * 200  # all of them are open now
        n_threads = len(list(Path(f"/proc/{front.pid}/task").iterdir()))
        for stream in streams:
            await stream.write(counting(5))
            await stream.done_writing()
        rests = await asyncio.gather(*map(read_all, streams))
        return [[number(answer) for answer in rest] for rest in rests], n_threads

    numbers, n_threads = talk(front.port, scenario)

    assert numbers == [list(range(5))] * 200
    assert n_threads < 40
