"""Defines tensors of KServe's v2 protocol: datatypes, values and declarations. Knows no JSON, gRPC or process."""

from corosrv.formats.tensors.datatypes import DATATYPES, Datatype
from corosrv.formats.tensors.declared import check_inputs
from corosrv.formats.tensors.spec import TensorSpec
from corosrv.formats.tensors.tensor import Parameter, Tensor

__all__ = ["DATATYPES", "Datatype", "Parameter", "Tensor", "TensorSpec", "check_inputs"]
