"""Defines the answers of the v2 protocol, as the API document shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.formats.tensors import Parameter


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
