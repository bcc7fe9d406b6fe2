"""Checks a request's inputs against a model's declarations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors.spec import TensorSpec
from corosrv.formats.tensors.tensor import Tensor


def check_inputs(specs: Sequence[TensorSpec], inputs: Iterable[Tensor]) -> None:
    """Raises InvalidTensor for a repeated, undeclared or missing input, and for a wrong datatype, rank or dimension.

    Without declarations any inputs are taken, but none twice.
    """
    by_name: dict[str, Tensor] = {}
    for tensor in inputs:
        if tensor.name in by_name:
            raise InvalidTensor(tensor.name, "is there twice")
        by_name[tensor.name] = tensor
    if not specs:
        return
    for spec in specs:
        if (tensor_of_spec := by_name.pop(spec.name, None)) is not None:
            _check(spec, tensor_of_spec)
        elif not spec.optional:
            raise InvalidTensor(spec.name, "is missing")
    for name in by_name:
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InvalidTensor(name, f"is no input of this model, which takes {names}")


def _check(spec: TensorSpec, tensor: Tensor) -> None:
    if tensor.datatype != spec.datatype:
        raise InvalidTensor(spec.name, f"has the datatype {tensor.datatype}, where the model takes {spec.datatype}")
    if not spec.allows(tensor.shape):
        raise InvalidTensor(spec.name, f"has the shape {list(tensor.shape)}, where the model takes {list(spec.shape)}")
