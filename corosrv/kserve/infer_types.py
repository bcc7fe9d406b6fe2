"""Answers of the v2 protocol, as the API document shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.tensors import Parameter


class OutputTensor(msgspec.Struct, omit_defaults=True):
    """One output: `data` is flat and row-major. One that comes in the binary tail has `parameters.binary_data_size`."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Parameter] = {}
    data: list[Any] = []


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """The outputs of one inference. `id` is the request's own, `model_version` the version that ran."""

    model_name: str
    outputs: list[OutputTensor]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Parameter] = {}
