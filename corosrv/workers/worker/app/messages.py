"""Defines what a handler gets, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corosrv.base.errors import CallRefused
from corosrv.formats.tensors import Parameter, Tensor


@dataclass(frozen=True)
class ModelInferRequest:
    """Holds one request. `requested_outputs`: the names that the client asked for; None: all of them."""

    inputs: Sequence[Tensor] = ()
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    requested_outputs: Sequence[str] | None = None

    def get_input(self, name: str) -> Tensor | None:
        """Returns the input of this name, or None."""
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the input of this name. Raises InvalidInput, which the client sees, if the request lacks it."""
        if (tensor := self.get_input(name)) is None:
            raise CallRefused(f"the input {name!r} is missing")
        return tensor


class ModelInferResponse:
    """Holds one answer. `final`: True says that no answer follows; None leaves it open.

    `model_name` and `model_version` say who answered a handler's own call. What a handler puts there is ignored.
    """

    def __init__(
        self,
        outputs: Iterable[Tensor] = (),
        parameters: Mapping[str, Parameter] | None = None,
        final: bool | None = None,
        *,
        model_name: str = "",
        model_version: str = "",
    ) -> None:
        self.outputs = list(outputs)
        self.parameters: dict[str, Parameter] = dict(parameters or {})
        self.final = final
        self.model_name = model_name
        self.model_version = model_version

    def add_output(
        self,
        name: str,
        datatype: str,
        shape: Sequence[int],
        data: Any = None,
        raw: bytes | memoryview | None = None,
    ) -> None:
        """Adds a tensor of flat `data` or of `raw` bytes. Raises InvalidTensor."""
        self.outputs.append(Tensor(name, datatype, shape, data, raw))

    def get_output(self, name: str) -> Tensor | None:
        """Returns the output of this name, or None."""
        return next((tensor for tensor in self.outputs if tensor.name == name), None)

    def __getitem__(self, name: str) -> Tensor:
        """Returns the output of this name. Raises KeyError if the answer lacks it."""
        if (tensor := self.get_output(name)) is None:
            raise KeyError(name)
        return tensor

    def __repr__(self) -> str:
        return f"ModelInferResponse({self.outputs!r}, {self.parameters!r}, final={self.final})"
