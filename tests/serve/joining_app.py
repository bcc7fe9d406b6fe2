"""An application whose workers join a server: its handlers say where they run, sleep, and keep the interpreter."""

import os
import time

from corosrv.worker import App, TensorSpec, Worker

app = App("joining")
PIDS = [TensorSpec("pid", "INT64", [1])]


@app.model("where", outputs=PIDS)
def where(request):
    return {"pid": [os.getpid()]}


@app.model("nap", outputs=PIDS)
def nap(request):
    print("napping", flush=True)
    time.sleep(request.parameters["seconds"])
    return {"pid": [os.getpid()]}


@app.model("hold", outputs=PIDS)
def hold(request):
    print("holding", flush=True)
    sum(range(10**15))  # in C, with the interpreter's lock


two_pools = App("two-pools")


@two_pools.model("first")
def first(request):
    return {}


@two_pools.worker(models=["second"], outputs=PIDS)
class Second(Worker):
    def on_stop(self):
        print("second stops")

    def handle(self, request, context):
        return {"pid": [os.getpid()]}
