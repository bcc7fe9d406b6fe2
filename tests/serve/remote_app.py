"""An application whose workers join over TCP: large values, streams, batches, calls of each other, and objects."""

import hashlib
import os
import time

from corosrv.worker import App, TensorSpec

app = App("remote")
other = App("other")
PIDS = [TensorSpec("pid", "INT64", [1])]
BYTES = [TensorSpec("x", "UINT8", [-1])]


@app.model("where", outputs=PIDS)
def where(request):
    return {"pid": [os.getpid()]}


@app.model("mirror", inputs=BYTES, outputs=BYTES)
def mirror(request):
    return {"x": request["x"]}


@app.model("counts", inputs=[TensorSpec("text_input", "BYTES", [1])], outputs=[TensorSpec("text_output", "BYTES", [1])])
def counts(request):
    for number in range(int(request["text_input"].data[0])):
        yield {"text_output": [f"{number} "]}


@app.model("nap", outputs=PIDS, concurrency=2)
def nap(request, context):
    print("napping", flush=True)
    try:
        context.sleep(request.parameters["seconds"])
    finally:
        print("nap is over", flush=True)
    return {"pid": [os.getpid()]}


@app.model("again", outputs=PIDS, idempotent=True)
def again(request, context):
    print("trying", flush=True)
    if context.attempt == 1:
        time.sleep(600)
    return {"pid": [os.getpid()]}


@app.model(
    "together", inputs=BYTES, outputs=[TensorSpec("n", "INT64", [-1])], batch={"max_size": 4, "max_delay_ms": 20_000}
)
def together(requests):
    return [{"n": [len(requests), request["x"].data[0]]} for request in requests]


@app.model("keeps", outputs=[TensorSpec("sha", "BYTES", [1])])
def keeps(request, context):
    """Stores a large object, has another handler read it, and returns what that one found."""
    ref = context.objects.create(bytes(range(256)) * (3 << 12), key="large")
    print("stored", ref.size)
    found = context.call(model="finds", inputs={}).outputs[0].data
    context.objects.delete(ref)
    return {"sha": found}


@app.model("finds", outputs=[TensorSpec("sha", "BYTES", [1])])
def finds(request, context):
    content = context.objects.get(context.objects.lookup("large"))
    return {"sha": [hashlib.sha256(content).hexdigest()]}


@other.model("where", outputs=PIDS)
def elsewhere(request):
    return {"pid": [0]}
