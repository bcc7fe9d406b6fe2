"""The bodies of v2 requests, as they are decoded, and of answers and errors, as the API document shows them."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Response
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError, ShuttingDown
from corosrv.formats.tensors import Parameter
from corosrv.web.http.reply import error_response


class KserveError(msgspec.Struct):
    """The body of every error of the v2 protocol."""

    error: str


def error_body(error: CorosrvError) -> KserveError:
    return KserveError(str(error))


def has_path(path: str) -> bool:
    """Returns whether errors at this path have the shape of the v2 protocol."""
    return path == "/v2" or path.startswith("/v2/")


def answer_error(error: CorosrvError, request_line: str = "") -> Response:
    """Makes the answer for an error. `request_line`: method and path, where no request of Flask's is at hand."""
    answer = error_response(error, error_body(error), request_line)
    if isinstance(error, ShuttingDown):
        answer.headers["Connection"] = "close"
    return answer


def register_errors(routes: Scaffold) -> None:
    """Gives errors of these routes the shape of the v2 protocol."""
    routes.register_error_handler(CorosrvError, lambda error: answer_error(error))


class OutputTensor(msgspec.Struct, omit_defaults=True):
    """Holds one output: `data` is flat and row-major. One in the binary tail has `parameters.binary_data_size`."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Parameter] = {}
    data: list[Any] = []


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """Holds the outputs of one inference. `id` is the request's own, `model_version` the version that ran."""

    model_name: str
    outputs: list[OutputTensor]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Parameter] = {}


class GenerateAnswer(msgspec.Struct, omit_defaults=True):
    """Holds generated text. Language models also say why it ended, and how many tokens there were."""

    model_name: str
    text_output: str
    model_version: str = ""
    id: str = ""
    finish_reason: str = ""
    num_input_tokens: int = 0
    num_output_tokens: int = 0


class GenerateEvent(GenerateAnswer, omit_defaults=True, kw_only=True):
    """Holds a piece of generated text; `done` is true in the last one."""

    done: bool


class InputBody(msgspec.Struct):
    """Holds one input tensor. Its content is in `data`, or `parameters.binary_data_size` bytes of the binary tail."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Parameter] = {}
    data: Any = msgspec.UNSET


class OutputBody(msgspec.Struct):
    """Names one output that is asked for. `parameters.binary_data`: whether it is to come in the binary tail."""

    name: str
    parameters: dict[str, Parameter] = {}


class InferBody(msgspec.Struct):
    """Asks for one inference. Without `outputs`, all of them are given."""

    inputs: list[InputBody]
    id: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Parameter] = {}
    outputs: list[OutputBody] | None = None


class CapabilityBody(InferBody, kw_only=True):
    """Asks for one inference by whatever satisfies a query.

    `prefer`: weights of predicates, as `{"tier=small": 2}`, that choose among several. `fuzzy`: strings also match if
    they differ in case, spaces, dots, dashes and underscores.
    """

    capability: dict[str, Any] = {}
    prefer: dict[str, float] = {}
    fuzzy: bool | msgspec.UnsetType = msgspec.UNSET


class GenerateBody(msgspec.Struct):
    """Holds a text to go on from. Other members are inputs of that name where the model has one, else parameters."""

    text_input: str
    id: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] = {}


class IndexBody(msgspec.Struct):
    """Asks for the index of models. `ready`: only of those that can be called now."""

    ready: bool = False
