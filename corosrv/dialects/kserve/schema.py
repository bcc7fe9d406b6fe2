"""Defines the bodies of v2 requests, as they are decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.formats.tensors import Parameter


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
