"""Requests and responses as handlers see them."""

import pytest

from corosrv.worker import InvalidInput, ModelInferRequest, ModelInferResponse, Tensor

A = Tensor("a", "INT32", [1], data=[1])


def test_an_input_is_found_by_its_name():
    request = ModelInferRequest(inputs=[A])

    assert request["a"] is A
    assert request.get_input("a") is A
    assert request.get_input("b") is None


def test_an_input_that_is_missing_is_the_clients_fault():
    with pytest.raises(InvalidInput, match="the input 'b' is missing"):
        ModelInferRequest(inputs=[A])["b"]


def test_an_output_is_found_by_its_name():
    response = ModelInferResponse()
    response.add_output("a", "INT32", [1], data=[1])

    assert response["a"].data == [1]
    with pytest.raises(KeyError):
        response["b"]
