"""Defines tensors of KServe's v2 protocol: datatypes, values and declarations. Knows no JSON, gRPC or process."""

from corosrv.formats.tensors.elements import DATATYPES, Datatype
from corosrv.formats.tensors.tensor import Parameter, Tensor, TensorSpec, check_inputs

__all__ = ["DATATYPES", "Datatype", "Parameter", "Tensor", "TensorSpec", "check_inputs"]
