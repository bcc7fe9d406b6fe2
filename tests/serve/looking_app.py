"""An application whose handlers take images: one measures them, one asks the server's model about them."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

from PIL import Image

from corosrv.worker import App, Context, ModelInferRequest, Tensor, TensorSpec

app = App("looking")

IMAGE = TensorSpec("image", "BYTES", [1])


@app.model("measure", inputs=[IMAGE], outputs=[TensorSpec("size", "INT32", [2])])
def measure(request: ModelInferRequest) -> dict[str, Any]:
    """Returns width and height of a file's image."""
    with Image.open(io.BytesIO(request["image"].data[0])) as picture:
        return {"size": list(picture.size)}


@app.model("look", inputs=[IMAGE], outputs=[TensorSpec("text", "BYTES", [1]), TensorSpec("n_tokens", "INT32", [1])])
def look(request: ModelInferRequest, context: Context) -> dict[str, Any]:
    """Returns what the language model says of a file's image."""
    inputs = {
        "text_input": Tensor("text_input", "BYTES", [1], data=["It is <__media__>"]),
        "image": Tensor("image", "BYTES", [1], data=[b64encode(request["image"].data[0])]),
    }
    said = context.call(model="tiny", inputs=inputs, parameters={"max_tokens": 4, "temperature": 0.0})
    return {"text": said["text_output"].data, "n_tokens": said["num_input_tokens"].data}
