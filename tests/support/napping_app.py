"""An application whose one handler sleeps, and says which process it is."""

import os
import time

from corosrv.worker import App, TensorSpec

app = App("napping")


@app.model(
    "nap", inputs=[TensorSpec("seconds", "FP64", [1])], outputs=[TensorSpec("pid", "INT64", [1])], max_queue=1000
)
def nap(request):
    time.sleep(request.get_input("seconds").data[0])
    return {"pid": [os.getpid()]}


@app.model("keep", inputs=[TensorSpec("seconds", "FP64", [1])], outputs=[TensorSpec("id", "BYTES", [1])])
def keep(request, context):
    """Stores what `nap` takes, and returns the reference to it."""
    return {"id": [context.objects.create(request.get_input("seconds")).id]}
