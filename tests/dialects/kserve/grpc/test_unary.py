"""ModelInfer over a real gRPC process: contents, parameters, names, terms and errors."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from corosrv.contracts.jobs.infer import CapabilityTarget, ModelTarget
from corosrv.dialects.kserve.grpc import protocol
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.dialects.kserve.grpc.guard import peer_address
from corosrv.formats.tensors import Tensor
from corosrv.web.inference_gateway import FAIRNESS_ID, OBJECTIVE, GatewayRules
from tests.dialects.kserve.grpc.client import Stub, infer_request, status, talk, typed_request, value_of
from tests.dialects.kserve.grpc.conftest import serving
from tests.support.function_worker import FunctionWorker
from tests.support.waiting import wait_until

SEVEN = Tensor("x", "INT32", [1], data=[7])


def infer(front: GrpcFront, request: Any, **options: Any) -> Any:
    async def scenario(stub: Stub) -> Any:
        return await stub.infer(request, **options)

    return talk(front.port, scenario)


def failure(front: GrpcFront, request: Any, **options: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    async def scenario(stub: Stub) -> Any:
        return await status(stub.infer(request, **options))

    return talk(front.port, scenario)


def test_raw_contents_are_answered_raw(front: GrpcFront) -> None:
    answer = infer(front, infer_request("echo", SEVEN, Tensor("t", "BYTES", [2], data=["ü", b"\xff"]), id="q1"))

    assert (answer.model_name, answer.model_version, answer.id) == ("echo", "", "q1")
    assert [(out.name, out.datatype, list(out.shape)) for out in answer.outputs] == [
        ("x", "INT32", [1]),
        ("t", "BYTES", [2]),
    ]
    assert list(answer.raw_output_contents) == [b"\x07\0\0\0", b"\x02\0\0\0\xc3\xbc\x01\0\0\0\xff"]
    assert not any(out.HasField("contents") for out in answer.outputs)


@pytest.mark.parametrize(
    ("datatype", "field", "data"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 2**16 - 1]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -1.5]),
        ("FP64", "fp64_contents", [0.1, 1e300]),
        ("BYTES", "bytes_contents", [b"", b"\0abc"]),
    ],
)
def test_typed_contents_are_answered_typed(
    front: GrpcFront, worker: FunctionWorker, datatype: str, field: str, data: list[Any]
) -> None:
    answer = infer(front, typed_request("echo", Tensor("x", datatype, [2, 1], data=data)))

    assert worker.calls[0].request.inputs[0].data == data
    assert list(getattr(answer.outputs[0].contents, field)) == data
    assert len(answer.outputs[0].contents.ListFields()) == 1
    assert list(answer.raw_output_contents) == []


def test_an_output_without_a_typed_field_makes_the_whole_answer_raw(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.add(lambda call: call.send(SEVEN, Tensor("h", "FP16", [1], data=[0.5])), "halves")

    answer = infer(front, typed_request("halves", SEVEN))

    assert list(answer.raw_output_contents) == [b"\x07\0\0\0", b"\x00\x38"]
    assert not any(out.HasField("contents") for out in answer.outputs)


def test_a_request_without_inputs_is_answered_raw(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.add(lambda call: call.send(SEVEN), "seven")

    assert list(infer(front, infer_request("seven")).raw_output_contents) == [b"\x07\0\0\0"]


@pytest.mark.parametrize("make", [infer_request, typed_request])
def test_a_tensor_of_no_elements_is_one(front: GrpcFront, make: Any) -> None:
    answer = infer(front, make("echo", Tensor("x", "FP32", [0, 3], data=[])))

    assert list(answer.outputs[0].shape) == [0, 3]
    assert list(answer.raw_output_contents) == ([b""] if make is infer_request else [])


def test_a_large_tensor_goes_there_and_back(front: GrpcFront) -> None:
    content = bytes(range(256)) * (60 << 12)

    answer = infer(front, infer_request("echo", Tensor("x", "UINT8", [len(content)], raw=content)))

    assert answer.raw_output_contents[0] == content


def test_parameters_keep_their_types_and_those_of_the_front_stay_there(
    front: GrpcFront, worker: FunctionWorker
) -> None:
    own = {"flag": True, "n": -1, "x": 1.0, "word": "ü", "sequence_id": 3}
    request = infer_request(
        "echo", SEVEN, parameters={**own, "timeout": 0, "priority": 2, "binary_data_output": True, "triton_x": "y"}
    )
    request.parameters["big"].uint64_param = 2**64 - 1
    request.inputs[0].parameters["unit"].string_param = "m"

    answer = infer(front, request)

    arrived = worker.calls[0].request
    assert dict(arrived.parameters) == {**own, "big": 2**64 - 1}
    assert {name: type(value) for name, value in arrived.parameters.items()}["x"] is float
    assert dict(arrived.inputs[0].parameters) == {"unit": "m"}
    returned = {name: value_of(parameter) for name, parameter in answer.parameters.items()}
    assert returned == {**own, "big": 2**64 - 1}
    assert {name: type(value) for name, value in returned.items()} == {
        "flag": bool,
        "n": int,
        "x": float,
        "word": str,
        "sequence_id": int,
        "big": int,
    }
    assert value_of(answer.outputs[0].parameters["unit"]) == "m"


def test_a_call_carries_its_target_id_and_outputs(front: GrpcFront, worker: FunctionWorker) -> None:
    answer = infer(front, infer_request("add", SEVEN, version="10", id="q", outputs=["b", "a"]))

    job = worker.calls[0].job
    assert (job.target, job.request.id, job.request.outputs) == (ModelTarget("add", "10"), "q", ("b", "a"))
    assert not job.stream
    assert (answer.model_name, answer.model_version) == ("add", "10")


def test_the_earlier_of_all_deadlines_holds(front: GrpcFront, worker: FunctionWorker) -> None:
    request = infer_request("echo", parameters={"timeout": 60_000_000})
    infer(front, request, timeout=20)
    infer(front, request, timeout=90)
    infer(front, request, metadata=[("x-request-timeout-ms", "10000")])
    infer(front, infer_request("echo"))
    now = time.monotonic()

    deadlines = [call.job.terms.deadline for call in worker.calls]
    assert deadlines[3] is None
    left = [deadline - now for deadline in deadlines[:3] if deadline is not None]
    assert 10 < left[0] <= 20.5  # gRPC rounds the time that it sends up
    assert 45 < left[1] <= 60
    assert 5 < left[2] <= 10


def test_a_call_says_its_priority_session_and_request_id(front: GrpcFront, worker: FunctionWorker) -> None:
    infer(front, infer_request("echo", parameters={"priority": 2, "sequence_id": 4}))
    infer(
        front, infer_request("echo"), metadata=[("x-request-id", "my-id"), ("x-session-id", "s"), ("x-priority", "9")]
    )
    infer(front, infer_request("echo"), metadata=[("x-request-id", "no id")])

    first, second, third = (call.job.terms for call in worker.calls)
    assert (first.priority, first.session) == (2, "4")
    assert (second.priority, second.session, second.request_id) == (9, "s", "my-id")
    assert (third.priority, third.session) == (5, "")
    assert third.request_id.startswith("req_")


def test_metadata_of_a_gateway_says_whose_share_a_call_takes(worker: FunctionWorker) -> None:
    metadata = [(FAIRNESS_ID.lower(), "a"), (OBJECTIVE.lower(), "batch")]
    rules = GatewayRules(("127.0.0.1",), {"premium": 1, "batch": -1})
    with serving(worker, GrpcConfig(gateway=rules)) as front:
        infer(front, infer_request("echo", parameters={"priority": 1}), metadata=metadata)
        infer(front, infer_request("echo"))
        code, text, _ = failure(front, infer_request("echo"), metadata=[(FAIRNESS_ID.lower(), "a" * 129)])

    told, usual = (call.job.terms for call in worker.calls)
    assert (told.owner, told.tier, told.priority) == ("\0a\0002", 2, 6)
    assert dict(told.headers) == {FAIRNESS_ID.lower(): "a", OBJECTIVE.lower(): "batch"}
    assert (usual.owner, usual.tier, usual.priority) == ("", 1, 5)
    assert (code, FAIRNESS_ID in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text


def test_such_metadata_of_others_changes_nothing(front: GrpcFront, worker: FunctionWorker) -> None:
    infer(front, infer_request("echo"), metadata=[(FAIRNESS_ID.lower(), "a" * 129), (OBJECTIVE.lower(), "batch")])

    terms = worker.calls[0].job.terms
    assert (terms.owner, terms.tier, terms.priority) == ("", 0, 5)
    assert terms.headers == (), "no peer is to believe them either"


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:50000", "10.0.0.1"), ("ipv6:%5Bfd00::1%5D:50000", "fd00::1"), ("unix:/run/a", ""), ("", "")],
)
def test_a_peer_has_an_address_as_gateways_are_named_by(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_a_capability_is_asked_for_by_metadata(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.find = lambda target: worker.models[next(key for key in worker.models if key.startswith("cap:"))][0]  # type: ignore[method-assign]
    try:
        answer = infer(front, infer_request("", SEVEN), metadata=[("x-capability-type", "embed"), ("x-cap-ctx", ">=8")])
    finally:
        del worker.find

    assert worker.calls[0].job.target == CapabilityTarget({"type": {"text": "embed"}, "ctx": {"text": ">=8"}})
    assert answer.model_name == "small"
    assert value_of(answer.parameters["capability"]) == '{"type":"embed","ctx":512}'


def test_preferences_and_a_fuzzy_query_are_metadata_too(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.find = lambda target: worker.models["model:echo:"][0]  # type: ignore[method-assign]
    metadata = [("x-capability-type", "Embed"), ("x-prefer", '{"tier=small": 2, "gpu": 0.5}'), ("x-fuzzy", "true")]
    try:
        infer(front, infer_request("", SEVEN), metadata=metadata)
    finally:
        del worker.find

    assert worker.calls[0].job.target == CapabilityTarget(
        {"type": {"text": "Embed"}}, {"tier=small": 2.0, "gpu": 0.5}, True
    )


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([("x-capability-type", "embed"), ("x-prefer", "tier=small")], "JSON object of weights"),
        ([("x-capability-type", "embed"), ("x-prefer", '{"tier": "2"}')], "JSON object of weights"),
        ([("x-capability-type", "embed"), ("x-fuzzy", "perhaps")], "neither true nor false"),
    ],
)
def test_wrong_preferences_are_refused(front: GrpcFront, metadata: Any, words: str) -> None:
    code, text, _ = failure(front, infer_request(""), metadata=metadata)

    assert (code, words in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text


def test_preferences_for_a_model_that_is_named_are_refused(front: GrpcFront) -> None:
    for metadata in ([("x-prefer", '{"a": 1}')], [("x-fuzzy", "1")]):
        code, text, _ = failure(front, infer_request("echo"), metadata=metadata)
        assert (code, "by capability" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text


# What is refused.


def wrong(change: Any, *tensors: Tensor, make: Any = infer_request) -> Any:
    request = make("echo", *(tensors or (SEVEN,)), id="q")
    change(request)
    return request


WRONG = {
    "raw and typed in one request": wrong(lambda r: r.inputs[0].contents.int_contents.append(7)),
    "fewer raw contents than inputs": wrong(lambda r: r.inputs.add(name="y", datatype="INT32", shape=[1])),
    "more raw contents than inputs": wrong(lambda r: r.raw_input_contents.append(b"")),
    "a raw content that is too short": wrong(lambda r: r.raw_input_contents.__setitem__(0, b"abc")),
    "a raw content that is too long": wrong(lambda r: r.raw_input_contents.__setitem__(0, b"abcde")),
    "two typed fields": wrong(lambda r: r.inputs[0].contents.fp32_contents.append(7), make=typed_request),
    "another field than the datatype's": wrong(lambda r: setattr(r.inputs[0], "datatype", "FP32"), make=typed_request),
    "typed contents of the wrong count": wrong(
        lambda r: r.inputs[0].contents.int_contents.append(8), make=typed_request
    ),
    "no contents at all": wrong(lambda r: r.inputs[0].ClearField("contents"), make=typed_request),
    "a number out of range": wrong(
        lambda r: (setattr(r.inputs[0], "datatype", "INT8"), r.inputs[0].contents.int_contents.__setitem__(0, 300)),
        make=typed_request,
    ),
    "a datatype that has no typed field": wrong(lambda r: setattr(r.inputs[0], "datatype", "FP16"), make=typed_request),
    "an empty name": wrong(lambda r: setattr(r.inputs[0], "name", "")),
    "an empty name of typed contents": wrong(lambda r: setattr(r.inputs[0], "name", ""), make=typed_request),
    "an unknown datatype": wrong(lambda r: setattr(r.inputs[0], "datatype", "int32")),
    "a negative dimension": wrong(lambda r: r.inputs[0].shape.__setitem__(0, -1)),
    "a shape that overflows": wrong(lambda r: r.inputs[0].shape.extend([2**62, 4])),
    "a BOOL that is neither 0 nor 1": wrong(
        lambda r: (setattr(r.inputs[0], "datatype", "BOOL"), r.raw_input_contents.__setitem__(0, b"\x02"))
    ),
    "a BYTES element that lies about its length": wrong(
        lambda r: (setattr(r.inputs[0], "datatype", "BYTES"), r.raw_input_contents.__setitem__(0, b"\xff\0\0\0a"))
    ),
    "a parameter without a value": wrong(lambda r: r.parameters["empty"].SetInParent()),
    "a priority out of range": infer_request("echo", parameters={"priority": 10}),
    "a priority that is no integer": infer_request("echo", parameters={"priority": True}),
    "a time-out that is negative": infer_request("echo", parameters={"timeout": -1}),
    "bytes that are no message": b"\xff\xff\xff",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_an_invalid_argument_and_runs_nothing(
    front: GrpcFront, worker: FunctionWorker, what: str
) -> None:
    code, text, _ = failure(front, WRONG[what])

    assert code is grpc.StatusCode.INVALID_ARGUMENT, text
    assert text
    assert worker.calls == []


def test_metadata_that_says_no_number_is_refused(front: GrpcFront) -> None:
    code, text, _ = failure(front, infer_request("echo"), metadata=[("x-request-timeout-ms", "soon")])

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "Timeout" in text


def test_a_model_and_a_capability_at_once_are_refused(front: GrpcFront) -> None:
    code, text, _ = failure(front, infer_request("echo"), metadata=[("x-cap-type", "embed")])

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "capability" in text


def test_shared_memory_is_not_offered(front: GrpcFront) -> None:
    request = infer_request("echo", SEVEN)
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"

    assert failure(front, request)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_an_input_that_the_model_does_not_declare_is_refused(front: GrpcFront, worker: FunctionWorker) -> None:
    code, text, _ = failure(front, infer_request("add", SEVEN, version="2"))

    assert (code, worker.calls) == (grpc.StatusCode.INVALID_ARGUMENT, [])
    assert "'a' is missing" in text


@pytest.mark.parametrize("request_", [infer_request("nobody"), infer_request("add", version="3"), infer_request("")])
def test_an_unknown_model_is_not_found(front: GrpcFront, request_: Any) -> None:
    assert failure(front, request_)[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("how", "code", "trailing"),
    [
        ("refused", grpc.StatusCode.INVALID_ARGUMENT, None),
        ("bug", grpc.StatusCode.INTERNAL, None),
        ("full", grpc.StatusCode.RESOURCE_EXHAUSTED, "7000"),
        ("unavailable", grpc.StatusCode.UNAVAILABLE, "1000"),
        ("lost", grpc.StatusCode.ABORTED, None),
    ],
)
def test_each_failure_has_the_code_of_the_table(
    front: GrpcFront, how: str, code: grpc.StatusCode, trailing: str | None
) -> None:
    found, text, metadata = failure(front, infer_request("fail", parameters={"how": how}))

    assert (found, metadata.get("grpc-retry-pushback-ms")) == (code, trailing)
    assert text


def test_the_deadline_of_a_parameter_ends_a_call(front: GrpcFront) -> None:
    code, _, _ = failure(front, infer_request("hang", parameters={"timeout": 50_000}))

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_the_deadline_of_grpc_ends_a_call_and_its_handler(front: GrpcFront, worker: FunctionWorker) -> None:
    code, _, _ = failure(front, infer_request("hang"), timeout=0.3)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: not worker.n_running)


def test_a_client_that_cancels_cancels_its_handler(front: GrpcFront, worker: FunctionWorker) -> None:
    async def scenario(stub: Stub) -> None:
        call = stub.infer(infer_request("hang"))
        while not worker.calls:
            await asyncio.sleep(0.001)
        call.cancel()

    talk(front.port, scenario)

    wait_until(lambda: not worker.n_running)
    assert worker.calls[0].cancelled.is_set()


def test_a_message_over_the_limit_is_refused_and_the_channel_goes_on(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> Any:
        refused = await status(stub.infer(infer_request("echo", Tensor("x", "UINT8", [1 << 26], raw=bytes(1 << 26)))))
        return refused[0], (await stub.infer(infer_request("echo", SEVEN))).model_name

    assert talk(front.port, scenario) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "echo")


@pytest.mark.parametrize("way", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=["gzip", "deflate"])
def test_a_compressed_message_is_taken(front: GrpcFront, way: grpc.Compression) -> None:
    content = bytes(range(256)) * 400

    answer = infer(front, infer_request("echo", Tensor("x", "UINT8", [len(content)], raw=content)), compression=way)

    assert list(answer.raw_output_contents) == [content]


def test_a_small_message_that_inflates_over_the_limit_is_refused(worker: FunctionWorker) -> None:
    bomb = infer_request("echo", Tensor("x", "UINT8", [100_000], raw=bytes(100_000)))

    with serving(worker, GrpcConfig(max_message=10_000)) as small:
        codes = [failure(small, bomb, compression=way)[0] for way in (grpc.Compression.Gzip, grpc.Compression.Deflate)]
        answer = infer(small, infer_request("echo", SEVEN))

    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    assert answer.model_name == "echo"
    assert len(worker.calls) == 1


def test_an_answer_over_the_limit_fails_its_own_call(front: GrpcFront, worker: FunctionWorker) -> None:
    worker.add(lambda call: call.send(Tensor("x", "UINT8", [1 << 26], raw=bytes(1 << 26))), "giant")

    async def scenario(stub: Stub) -> Any:
        refused = await status(stub.infer(infer_request("giant")))
        return refused[0], (await stub.infer(infer_request("echo", SEVEN))).model_name

    assert talk(front.port, scenario) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "echo")


def test_parameters_that_fit_no_frame_are_refused_or_fail_and_the_lane_goes_on(
    front: GrpcFront, worker: FunctionWorker
) -> None:
    worker.add(lambda call: call.send(word="x" * (9 << 20)), "wordy")

    assert failure(front, infer_request("echo", parameters={"word": "x" * (9 << 20)}))[0] is (
        grpc.StatusCode.INVALID_ARGUMENT
    )
    assert failure(front, infer_request("wordy"))[0] is grpc.StatusCode.INTERNAL
    assert infer(front, infer_request("echo", SEVEN)).model_name == "echo"


def test_many_calls_run_side_by_side_and_get_their_own_answers(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> list[Any]:
        requests = [infer_request("echo", Tensor("x", "INT32", [1], data=[n]), id=str(n)) for n in range(300)]
        return await asyncio.gather(*map(stub.infer, requests))

    answers = talk(front.port, scenario)

    assert [(answer.id, answer.raw_output_contents[0]) for answer in answers] == [
        (str(n), n.to_bytes(4, "little")) for n in range(300)
    ]


def test_methods_that_are_not_here_are_unimplemented(front: GrpcFront) -> None:
    async def scenario(stub: Stub) -> Any:
        method = stub._channel.unary_unary(f"/{protocol.SERVICE}/SystemSharedMemoryStatus")
        return await status(method(b""))

    assert talk(front.port, scenario)[0] is grpc.StatusCode.UNIMPLEMENTED
