"""The messages of KServe's v2 protocol, in a pool of descriptors of our own.

tritonclient, the KServe SDK and every generated module claim the names `inference.*` in protobuf's common pool, which
refuses a second claim. Here nothing is in that pool.

Source: the Open Inference Protocol, `grpc_predict_v2.proto`, and Triton's `grpc_service.proto`: names and numbers of
fields.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, Message

from corosrv.dialects.kserve.grpc.schema import Schema, SchemaPool

__all__ = ["SCHEMA", "SERVICE", "DecodeError", "Message"]

SERVICE = "inference.GRPCInferenceService"

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
    "InferParameter": "bool bool_param@parameter_choice, int64 int64_param@parameter_choice, "
    "string string_param@parameter_choice, double double_param@parameter_choice, uint64 uint64_param@parameter_choice",
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

_METHODS = (
    "ServerLive ServerLiveRequest ServerLiveResponse, ServerReady ServerReadyRequest ServerReadyResponse, "
    "ModelReady ModelReadyRequest ModelReadyResponse, ServerMetadata ServerMetadataRequest ServerMetadataResponse, "
    "ModelMetadata ModelMetadataRequest ModelMetadataResponse, "
    "RepositoryIndex RepositoryIndexRequest RepositoryIndexResponse, "
    "ModelInfer ModelInferRequest ModelInferResponse, "
    "ModelStreamInfer ModelInferRequest* ModelStreamInferResponse*"
)

SCHEMA = Schema("corosrv/inference.proto", "inference", _MESSAGES, services={"GRPCInferenceService": _METHODS})
_pool = SchemaPool([SCHEMA])


def _message(name: str) -> Any:
    return _pool.message(f"inference.{name}")


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
