"""Tests that calls and replies come out of the shared queue as they went in."""

import pytest

from corosrv.base.errors import ErrorKind, InvalidTensor, ProtocolError, QueueFull
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, ForwardRequest, InferOutputs, InferRequest
from corosrv.fleet.cluster.call_codec import (
    SharedEnd,
    SharedRequest,
    decode_call,
    decode_end,
    decode_outputs,
    encode_call,
    encode_end,
    encode_outputs,
)
from corosrv.formats.tensors import Tensor

TENSOR = Tensor("a", "INT32", [2], [1, -2], parameters={"scale": 0.5})


def test_a_call_of_a_handler_is_the_same_again():
    request = InferRequest((TENSOR, Tensor("b", "BYTES", [1], [b"\xff"])), "id-1", {"x": True, "y": "é"}, ("out",))
    call = SharedRequest(request, True, "caller", "request-1", 2, "session", ("model:a:",))

    assert decode_call(encode_call(call)) == call


def test_a_forwarded_call_is_the_same_again():
    request = ForwardRequest(path="/v1/x?y=1", headers=(("a", "b"), ("a", "c")), body=b"\x00{}", prompt=b"begin")

    assert decode_call(encode_call(SharedRequest(request))) == SharedRequest(request)


def test_pieces_of_answers_are_the_same_again():
    pieces = [
        InferOutputs((TENSOR,), {"final": True}, is_final=True),
        AnswerHead(status=429, headers=(("retry-after", "3"),)),
        AnswerBody(data=b"data: \xff\n\n"),
    ]

    assert decode_outputs(encode_outputs(pieces)) == pieces


def test_an_error_keeps_what_it_means_for_the_client():
    error = QueueFull("too many")
    error.retry_after = 7

    read = decode_end(encode_end(SharedEnd(error=error))).error

    assert read is not None
    assert (str(read), read.status, read.kind, read.retry_after) == ("too many", 429, ErrorKind.RATE_LIMITED, 7)


def test_a_good_end_has_its_outputs():
    end = SharedEnd((InferOutputs((TENSOR,)),))

    assert decode_end(encode_end(end)) == end


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x80"])
def test_garbage_is_an_error_of_the_protocol(data: bytes):
    with pytest.raises(ProtocolError):
        decode_call(data)


def test_a_tensor_that_does_not_fit_its_shape_is_refused():
    wrong = Tensor.from_checked("a", "INT32", [2], b"1234")

    with pytest.raises(InvalidTensor):
        decode_outputs(encode_outputs([InferOutputs((wrong,))]))
