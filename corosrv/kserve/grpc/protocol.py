"""The messages of KServe's v2 protocol, in a pool of descriptors of our own.

tritonclient, the KServe SDK and every generated module claim the names `inference.*` in protobuf's common pool, which
refuses a second claim. Here nothing is in that pool.

Source: the Open Inference Protocol, `grpc_predict_v2.proto`, and Triton's `grpc_service.proto`: names and numbers of
fields.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

__all__ = ["SERVICE", "DecodeError", "Message"]

SERVICE = "inference.GRPCInferenceService"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}

# A message of each name with its fields, numbered from 1 on: `*` marks repeated ones, `parameters` is a map. A dotted
# name is a message within another one.
_MESSAGES: dict[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready",
    "ModelReadyRequest": "string name, string version",
    "ModelReadyResponse": "bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name, string version, string* extensions",
    "ModelMetadataRequest": "string name, string version",
    "ModelMetadataResponse": "string name, string* versions, string platform, "
    "ModelMetadataResponse.TensorMetadata* inputs, ModelMetadataResponse.TensorMetadata* outputs",
    "ModelMetadataResponse.TensorMetadata": "string name, string datatype, int64* shape",
    "InferParameter": "bool bool_param, int64 int64_param, string string_param, double double_param, "
    "uint64 uint64_param",
    "InferTensorContents": "bool* bool_contents, int32* int_contents, int64* int64_contents, uint32* uint_contents, "
    "uint64* uint64_contents, float* fp32_contents, double* fp64_contents, bytes* bytes_contents",
    "ModelInferRequest": "string model_name, string model_version, string id, map parameters, "
    "ModelInferRequest.InferInputTensor* inputs, ModelInferRequest.InferRequestedOutputTensor* outputs, "
    "bytes* raw_input_contents",
    "ModelInferRequest.InferInputTensor": "string name, string datatype, int64* shape, map parameters, "
    "InferTensorContents contents",
    "ModelInferRequest.InferRequestedOutputTensor": "string name, map parameters",
    "ModelInferResponse": "string model_name, string model_version, string id, map parameters, "
    "ModelInferResponse.InferOutputTensor* outputs, bytes* raw_output_contents",
    "ModelInferResponse.InferOutputTensor": "string name, string datatype, int64* shape, map parameters, "
    "InferTensorContents contents",
    "ModelStreamInferResponse": "string error_message, ModelInferResponse infer_response",
    "RepositoryIndexRequest": "string repository_name, bool ready",
    "RepositoryIndexResponse": "RepositoryIndexResponse.ModelIndex* models",
    "RepositoryIndexResponse.ModelIndex": "string name, string version, string state, string reason",
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="corosrv/inference.proto", package="inference", syntax="proto3")
    by_name: dict[str, Any] = {}
    for name in sorted(_MESSAGES, key=lambda name: name.count(".")):
        outer, _, inner = name.rpartition(".")
        message = by_name[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=inner)
        by_name[name] = message
        for number, field in enumerate(filter(None, _MESSAGES[name].split(", ")), start=1):
            kind, field_name = field.split(" ")
            if kind == "map":
                _add_parameters(message, f".inference.{name}", number)
            else:
                _add_field(message, kind, field_name, number)
    _make_oneof(by_name["InferParameter"])
    return file


def _add_field(message: Any, kind: str, name: str, number: int) -> None:
    label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
    kind = kind.removesuffix("*")
    field = message.field.add(name=name, number=number, label=label)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".inference.{kind}"


def _add_parameters(message: Any, path: str, number: int) -> None:
    """Adds `map<string, InferParameter> parameters`, which is a repeated message of key and value."""
    entry = message.nested_type.add(name="ParametersEntry")
    entry.options.map_entry = True
    _add_field(entry, "string", "key", 1)
    _add_field(entry, "InferParameter", "value", 2)
    _add_field(message, "ParametersEntry*", "parameters", number)
    message.field[-1].type_name = f"{path}.ParametersEntry"


def _make_oneof(message: Any) -> None:
    message.oneof_decl.add(name="parameter_choice")
    for field in message.field:
        field.oneof_index = 0


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_file().SerializeToString())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))


ServerLiveRequest = _message("ServerLiveRequest")
ServerLiveResponse = _message("ServerLiveResponse")
ServerReadyRequest = _message("ServerReadyRequest")
ServerReadyResponse = _message("ServerReadyResponse")
ModelReadyRequest = _message("ModelReadyRequest")
ModelReadyResponse = _message("ModelReadyResponse")
ServerMetadataRequest = _message("ServerMetadataRequest")
ServerMetadataResponse = _message("ServerMetadataResponse")
ModelMetadataRequest = _message("ModelMetadataRequest")
ModelMetadataResponse = _message("ModelMetadataResponse")
InferParameter = _message("InferParameter")
InferTensorContents = _message("InferTensorContents")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
RepositoryIndexRequest = _message("RepositoryIndexRequest")
RepositoryIndexResponse = _message("RepositoryIndexResponse")
