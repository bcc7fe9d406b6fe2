"""Runs engines in a process where libllama has a device beside the processor: tests/native/ggml/other_device.cpp.

Takes the path of its library and, in JSON, the settings of each engine; writes what each answered in JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from corosrv.contracts.jobs import Sampling
from corosrv.models.engine import libllama
from tests.support.engines import job, opened, packaged_model, read_all, text_of

PROMPTS = ("Once upon a time", "The colour of the sea", "Water is")
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.8, seed=2, top_k=0),
    Sampling(temperature=0.8, seed=3, presence_penalty=1),
    Sampling(temperature=0, grammar="root ::= [0-9]+ [.]"),
)


def run(device: Any, settings: dict[str, Any]) -> dict[str, Any]:
    before = device.n_computed_elsewhere()
    with opened(model=packaged_model(), slots=3, ctx=128, **settings) as engine:
        texts = [
            text_of(read_all(engine.submit(job(prompt, max_tokens=12, sampling=sampling))))
            for prompt in PROMPTS
            for sampling in SAMPLINGS
        ]
        kernels = engine.info.kernels
    return {"texts": texts, "kernels": kernels, "elsewhere": device.n_computed_elsewhere() - before}


def main() -> None:
    libllama.folder()
    device = ctypes.CDLL(sys.argv[1])
    device.n_computed_elsewhere.restype = ctypes.c_size_t
    device.register_other_device()
    print(json.dumps([run(device, settings) for settings in json.loads(sys.argv[2])]))


if __name__ == "__main__":
    main()
