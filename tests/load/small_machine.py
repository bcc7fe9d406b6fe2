"""A model of a billion weights in 4 GiB: `python -m tests.load.small_machine [--gib 4] [--processors 2] [--clients 8]`.

Writes a decoder with 1.1 billion random weights in Q4_K_M, and serves it with nothing set but its path, in a memory
cgroup of so many bytes and on so many processors. Prints what the server says it chose, how long it took to be ready,
what the clients waited for, and the most memory that was in use. Needs the right to make a cgroup.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests.load.completions import complete_all
from tests.load.memory_cgroup import MemoryCgroup, limited_to
from tests.load.process import serving
from tests.support.random_model import DecoderShape, write_random_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="memory of the cgroup")
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="that each client asks for")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds until ready, and of each answer")
    parser.add_argument("--model", type=Path, help="where the model is, or is to be written and kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "random.gguf"
        if not model.exists():
            write_random_model(model.with_suffix(".part")).rename(model)
        print(f"{'the model':32} {DecoderShape().n_weights / 1e9:.2f} billion weights, {_gigabytes(model)}", flush=True)
        with limited_to(int(options.gib * 2**30)) as cgroup:
            run(options, model, cgroup, Path(folder) / "log")


def run(options: argparse.Namespace, model: Path, cgroup: MemoryCgroup, log: Path) -> None:
    processors = sorted(os.sched_getaffinity(0))[: options.processors]

    def enter() -> None:
        cgroup.join()
        os.sched_setaffinity(0, processors)

    began = time.monotonic()
    with serving({"MODEL": str(model)}, options.timeout, log, before=enter) as server:
        ready = time.monotonic() - began
        prompts = [f"Client {number} asks for words." for number in range(options.clients)]
        answers = complete_all(server, prompts, options.tokens, options.timeout)
        chosen = [line for line in log.read_text().splitlines() if "slots of" in line or "kernels" in line]
        rows = {
            "the server's log": "\n".join(chosen),
            "ready after (s)": f"{ready:.1f}",
            "answers": f"{len(answers)}, of {min(answer.n_tokens for answer in answers)} tokens at least",
            "the last one after (s)": f"{max(answer.seconds for answer in answers):.1f}",
            "most memory in use, with files": f"{cgroup.peak / 1e9:.2f} GB of {options.gib * 1.073741824:.2f}",
            "processes ended for want of it": cgroup.n_killed,
        }
    for name, value in rows.items():
        print(f"{name:32} {value}", flush=True)


def _gigabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e9:.2f} GB"


if __name__ == "__main__":
    main()
