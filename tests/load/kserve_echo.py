"""KServe's own server with a model that gives back its inputs; `tests.load.beside_kserve` starts it.

Runs under a Python that has `kserve`, and imports nothing of ours. The arguments are the ports of HTTP and of gRPC,
and perhaps --quiet.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Echo(Model):
    def __init__(self) -> None:
        super().__init__("echo")
        self.ready = True

    def predict(self, payload: InferRequest, *arguments: Any, **keywords: Any) -> InferResponse:
        outputs = []
        for tensor in payload.inputs:
            output = InferOutput(tensor.name, tensor.shape, tensor.datatype)
            output.set_data_from_numpy(tensor.as_numpy(), binary_data=True)
            outputs.append(output)
        return InferResponse(payload.id, self.name, outputs, use_binary_outputs=True)


if __name__ == "__main__":
    if "--quiet" in sys.argv:
        logging.disable(logging.INFO)  # it writes two lines for each call
    ModelServer(http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), workers=1).start([Echo()])
