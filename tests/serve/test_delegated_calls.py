"""Calls over gRPC, and those that handlers make, which another replica answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from corosrv.dialects.kserve.grpc import protocol
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request, value_of
from tests.serve.replicas import Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.wire import Answer, request
from tests.support.scripted_peer import ScriptedPeer, scripted_peer
from tests.support.scripted_upstream import Behaviour, closes, crashes, echo, fails_with
from tests.support.waiting import eventually

APPS = "tests/apps/delegated.py"
LIMIT = 60.0  # seconds for an answer on a machine that is busy


@dataclass
class Trio:
    """Two replicas with an application each, and one that has none; gRPC is spoken by the latter and by `front`."""

    front: Replica
    back: Replica
    bare: Replica
    sick: ScriptedPeer  # a peer of `bare`: it says that it has `both`, as `back` has, and `alone`

    def n_calls(self, handler: str) -> int:
        """Counts the calls of a handler that `back` runs or has waiting."""
        queues = self.back.manage("GET", "/v1/queues")["queues"]
        return sum(queue["depth"] + queue["in_flight"] for queue in queues if queue["key"] == f"model:{handler}:")

    def wait_calls(self, handler: str, n: int) -> None:
        eventually(lambda: self.n_calls(handler) == n, LIMIT, f"{n} calls of {handler}\n{self.back.server.log}")


@pytest.fixture(scope="module")
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    kept: Servers = request.getfixturevalue("_kept")
    with ports(3) as (a, b, c), ExitStack() as stack:
        start = stack.enter_context
        only: dict[str, Any] = {"COROSRV_MODEL": "", "wait_for": None}
        front = start(replica(kept, "front", a, b.url, worker_app=f"{APPS}:front", grpc_port=0, **only))
        back = start(replica(kept, "back", b, a.url, worker_app=f"{APPS}:back", **only))
        announced = {"replica": "sick", "formats": ["v2"], "handlers": [{"name": "both"}, {"name": "alone"}]}
        sick = start(scripted_peer("sick", announcing=lambda handler: handler.answer(200, announced)))
        bare = start(replica(kept, "bare", c, sick.url, a.url, b.url, grpc_port=0, **only))
        for one in (front, back, bare):
            one.server.wait_until("ok")
        front.wait_handler(b.url, "double:2")
        back.wait_handler(a.url, "asks")
        bare.wait_handler(a.url, "asks")
        bare.wait_handler(b.url, "double:2")
        bare.wait_handler(sick.url, "both")
        yield Trio(front, back, bare, sick)


def port_of(at: Replica) -> int:
    words = r"gRPC listens on 127\.0\.0\.1, port (\d+)"
    return int(eventually(lambda: re.findall(words, at.server.log), 60, "gRPC serves")[-1])


def numbers(*values: int) -> Tensor:
    return Tensor("n", "INT32", [len(values)], data=list(values))


@contextmanager
def grpc_of(at: Replica) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port_of(at)}") as channel:
        yield channel


def infer_method(channel: Any) -> Any:
    return channel.unary_unary(
        f"/{protocol.SERVICE}/ModelInfer",
        request_serializer=protocol.ModelInferRequest.SerializeToString,
        response_deserializer=protocol.ModelInferResponse.FromString,
    )


def ask_about(channel: Any, method: str, **fields: str) -> Any:
    ask = channel.unary_unary(
        f"/{protocol.SERVICE}/{method}",
        request_serializer=getattr(protocol, f"{method}Request").SerializeToString,
        response_deserializer=getattr(protocol, f"{method}Response").FromString,
    )
    return ask(getattr(protocol, f"{method}Request")(**fields), timeout=LIMIT, wait_for_ready=True)


def infer(at: Replica, request: Any, **options: Any) -> Any:
    with grpc_of(at) as channel:
        return infer_method(channel)(request, **{"timeout": LIMIT, "wait_for_ready": True} | options)


def failure(at: Replica, request: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        infer(at, request, **options)
    return raised.value


def stream(at: Replica, request: Any) -> Iterator[Any]:
    """Yields what ModelStreamInfer answers to one request."""
    with grpc_of(at) as channel:
        call = channel.stream_stream(
            f"/{protocol.SERVICE}/ModelStreamInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelStreamInferResponse.FromString,
        )
        yield from call(iter([request]), timeout=LIMIT)


def values_of(answer: Any) -> list[int]:
    return list(memoryview(answer.raw_output_contents[0]).cast("i"))


def post(at: Replica, handler: str, *values: int, **parameters: Any) -> Answer:
    tensor = {"name": "n", "datatype": "INT32", "shape": [len(values)], "data": list(values)}
    with at.server.connect(timeout=LIMIT) as connection:
        path = f"/v2/models/{handler}/infer"
        return connection.ask("POST", path, {"inputs": [tensor], "parameters": parameters})


# Over gRPC.


@pytest.mark.parametrize("at", ["front", "bare"])
def test_a_call_over_grpc_is_answered_by_the_replica_that_has_its_handler(trio: Trio, at: str):
    answer = infer(getattr(trio, at), infer_request("double", numbers(1, 2), version="2", id="mine"))

    assert (answer.model_name, answer.model_version, answer.id) == ("double", "2", "mine")
    assert values_of(answer) == [2, 4]
    assert getattr(trio, at).delegated()["answered"] >= 1


def test_a_model_of_a_peer_is_described_and_found_ready_over_grpc(trio: Trio):
    with grpc_of(trio.bare) as channel:
        described = ask_about(channel, "ModelMetadata", name="double", version="2")
        ready = [ask_about(channel, "ModelReady", name=name).ready for name in ("counts", "nobody-has-it")]

    assert (described.name, list(described.versions)) == ("double", ["2"])
    assert [(spec.name, spec.datatype) for spec in described.inputs] == [("n", "INT32")]
    assert ready == [True, False]


def test_a_capability_is_found_over_grpc(trio: Trio):
    answer = infer(trio.bare, infer_request("", numbers(8)), metadata=[("x-capability-type", "half")])

    assert values_of(answer) == [4]
    assert value_of(answer.parameters["capability"]) == '{"type":"half"}'


def test_the_id_the_time_and_the_parameters_of_a_call_go_on(trio: Trio):
    request = infer_request("tells", numbers(1), id="mine", parameters={"mood": "good"})
    answer = infer(trio.bare, request, timeout=50, metadata=[("x-request-id", "r-1")])

    told = {name: value_of(parameter) for name, parameter in answer.parameters.items()}
    assert (told["request"], told["id"], told["mood"]) == ("r-1", "mine", "good")
    assert 0 < told["left"] <= 50.1  # gRPC rounds a time limit up, one of this length to a tenth of a second


def test_a_repeated_key_is_answered_with_the_peer_s_first_answer(trio: Trio):
    options: dict[str, Any] = {"timeout": LIMIT, "wait_for_ready": True, "metadata": [("idempotency-key", "once")]}
    with grpc_of(trio.bare) as channel:
        pairs = [infer_method(channel).with_call(infer_request("tells", numbers(1)), **options) for _ in range(2)]

    (first, _), (second, call) = pairs
    assert first == second, "with the id of the first request in it"
    assert dict(call.trailing_metadata())["idempotency-replayed"] == "true"


def test_a_stream_over_grpc_comes_answer_by_answer(trio: Trio):
    answers = list(stream(trio.bare, infer_request("counts", numbers(3), id="mine")))

    assert [answer.error_message for answer in answers] == [""] * 3
    assert [values_of(answer.infer_response) for answer in answers] == [[0], [1], [2]]
    assert {answer.infer_response.id for answer in answers} == {"mine"}


def test_a_stream_that_fails_at_the_peer_ends_in_its_error(trio: Trio):
    *answers, last = stream(trio.bare, infer_request("counts", numbers(13)))

    assert [values_of(answer.infer_response) for answer in answers] == [[0], [1]]
    assert last.error_message == "thirteen brings no luck"


def test_a_stream_ends_at_the_peer_when_its_client_leaves(trio: Trio):
    answers = stream(trio.bare, infer_request("counts", numbers(-1)))
    next(answers)
    answers.close()

    trio.wait_calls("counts", 0)
    eventually(lambda: trio.bare.delegated().get("cancelled", 0) >= 1, LIMIT, "it is counted")


def test_what_nobody_has_is_not_found_at_once(trio: Trio):
    error = failure(trio.bare, infer_request("nobody-has-it", numbers(1)))

    assert error.code() is grpc.StatusCode.NOT_FOUND


def test_a_refusal_of_the_peer_is_that_of_a_server_that_has_the_handler(trio: Trio):
    error = failure(trio.bare, infer_request("double", version="2"))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "'n'" in error.details()


def test_a_busy_peer_says_when_to_come_back_and_a_cancel_reaches_it(trio: Trio):
    request = infer_request("waits", numbers(1))
    with grpc_of(trio.bare) as channel:
        calls = [infer_method(channel).future(request, timeout=LIMIT, wait_for_ready=True) for _ in range(2)]
        trio.wait_calls("waits", 2)  # one runs, one waits
        error = failure(trio.bare, request)
        for call in calls:
            call.cancel()

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
    trio.wait_calls("waits", 0)


def test_a_peer_that_cannot_serve_a_call_lets_another_one_be_asked(trio: Trio):
    trio.sick.behaviour = fails_with(503)
    answer = infer(trio.bare, infer_request("both", numbers(5)))

    assert values_of(answer) == [5]
    assert trio.sick.headers()["X-Corosrv-Path"] == "bare"


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        (closes, grpc.StatusCode.ABORTED, "the replica sick"),
        (echo, grpc.StatusCode.ABORTED, "the replica sick gave an answer that is none"),
        (crashes, grpc.StatusCode.INTERNAL, "a peer answered 500"),
    ],
)
def test_a_call_whose_peer_gives_no_answer_ends_in_one_clear_error(
    trio: Trio, behaviour: Behaviour, code: grpc.StatusCode, words: str
):
    trio.sick.behaviour = behaviour
    error = failure(trio.bare, infer_request("alone", numbers(5)))

    assert (error.code(), words in error.details()) == (code, True), error.details()


def test_a_call_ends_at_the_peer_when_its_time_is_over(trio: Trio):
    error = failure(trio.bare, infer_request("waits", numbers(1), parameters={"timeout": 500_000}))

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    trio.wait_calls("waits", 0)


# Of handlers.


@pytest.mark.parametrize(("asked", "values"), [({"model": "double"}, [6]), ({"type": "half"}, [1])])
def test_a_handler_calls_what_only_another_replica_has(trio: Trio, asked: dict[str, str], values: list[int]):
    answer = post(trio.front, "asks", 3, **asked)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "front")
    assert answer.json["outputs"][0]["data"] == values


def test_a_handler_reads_a_stream_of_another_replica(trio: Trio):
    answers = [
        values_of(answer.infer_response) for answer in stream(trio.bare, infer_request("asks_stream", numbers(3)))
    ]

    assert answers == [[0], [10], [20]], "through two replicas, for the one that is asked has no handler at all"


def test_a_client_that_leaves_ends_what_its_handler_has_asked_of_a_peer(trio: Trio):
    with trio.front.server.connect() as connection:
        tensor = {"name": "n", "datatype": "INT32", "shape": [1], "data": [1]}
        body = {"inputs": [tensor], "parameters": {"model": "waits"}}
        connection.send(request("POST", "/v2/models/asks/infer", body))
        trio.wait_calls("waits", 1)
        connection.leave()

    trio.wait_calls("waits", 0)


def test_handlers_that_call_each_other_across_replicas_come_to_an_end(trio: Trio):
    answer = post(trio.front, "asks", 1, model="asks_back")

    assert answer.status == 404
    assert trio.back.delegated()["no_peer"] >= 1, "the replica that could answer has seen the request"


# The end of a peer: the last test of this file.


def test_a_call_whose_peer_is_killed_is_lost_and_the_next_one_is_not_found(trio: Trio):
    with grpc_of(trio.bare) as channel:
        call = infer_method(channel).future(infer_request("waits", numbers(1)), timeout=LIMIT, wait_for_ready=True)
        trio.wait_calls("waits", 1)
        trio.back.server.stop()

        error = call.exception(timeout=LIMIT)

    assert (error.code(), "the replica back" in error.details()) == (grpc.StatusCode.ABORTED, True)
    eventually(lambda: trio.bare.peers()[trio.back.base_url]["state"] in ("down", "stale"), LIMIT, "it is missed")
    assert failure(trio.bare, infer_request("double", numbers(1))).code() is grpc.StatusCode.NOT_FOUND
