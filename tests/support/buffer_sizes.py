"""Asks libllama how many bytes of memory it gives the sequences of a model, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_ASK = """
import ctypes, json, re, sys, llama_cpp

lines = []
callback = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode()))
llama_cpp.llama_log_set(callback, ctypes.c_void_p())
for path, slots, context, rows, key, value, is_unified in json.load(sys.stdin):
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_load_model_from_file(path.encode(), params)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch, params.n_ubatch = slots * context, slots, rows, rows
    params.kv_unified, params.type_k, params.type_v = is_unified, key, value
    params.n_outputs_max = min(160, rows)
    lines.clear()
    made = llama_cpp.llama_new_context_with_model(model, params)
    text = "".join(lines)
    if not made:
        sys.exit(text)
    cached = re.findall(r"(?:kv_cache|memory_recurrent): size = +([0-9.]+) MiB", text)
    computing = re.findall(r"(?:compute|output) buffer size = +([0-9.]+) MiB", text)
    print(json.dumps([sum(map(float, found)) * 2**20 for found in (cached, computing)]))
    llama_cpp.llama_free(made)
    llama_cpp.llama_free_model(model)
"""


class Order(NamedTuple):
    """A context to ask for; the types of keys and values are ggml's numbers."""

    path: Path
    slots: int
    context: int
    rows: int = 512
    key: int = 1
    value: int = 1
    is_unified: bool = False


class Buffers(NamedTuple):
    """Bytes that libllama reports, as exact as its log: to 10 kB for each of its buffers."""

    cache: float
    computing: float


def buffer_sizes(orders: Sequence[Order]) -> list[Buffers]:
    """Makes each of these contexts and returns what libllama says of its buffers."""
    asked = json.dumps([[str(order.path), *order[1:]] for order in orders])
    done = subprocess.run([sys.executable, "-c", _ASK], input=asked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [Buffers(*json.loads(line)) for line in done.stdout.splitlines()]
