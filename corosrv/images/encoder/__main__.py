"""`python -m corosrv.images.encoder --model FILE --control FD --lifeline FD`: the encoder, which only a server
starts.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import argparse
import functools
import logging
import os
from collections.abc import Callable

from corosrv.images.encoder.mtmd import ProjectorOptions
from corosrv.images.encoder.opening import open_projector
from corosrv.images.encoder.process import EncoderProcess, RowSource
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL
from corosrv.workers.worker.child import lifeline


def open_tried(options: ProjectorOptions) -> RowSource:
    """Opens the projector. Raises LoadError."""
    return open_projector(options)[0]


def main(arguments: list[str], open_source: Callable[[ProjectorOptions], RowSource] = open_tried) -> None:
    """Encodes until the server ends or cannot be served. `open_source` opens what makes rows of images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mmproj", required=True)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--nice", type=int, default=0, help="by how much decoding goes before encoding")
    parser.add_argument("--image-min-tokens", type=int, default=0, help="rows of an image; 0: as the projector says")
    parser.add_argument("--image-max-tokens", type=int, default=0)
    parser.add_argument("--on-processor", action="store_true", help="also where there is a GPU")
    parser.add_argument("--supports", action="append", default=[], choices=[MROPE, NON_CAUSAL])
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger, which waits, in a process that is ending
    lifeline.hang_on(options.lifeline)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    files = ProjectorOptions(
        model=options.model,
        mmproj=options.mmproj,
        n_threads=options.threads,
        image_min_tokens=options.image_min_tokens,
        image_max_tokens=options.image_max_tokens,
        on_gpu=not options.on_processor,
        supports=options.supports,
    )
    EncoderProcess(options.control, functools.partial(open_source, files), options.nice).run()
    os._exit(1)  # libmtmd may have threads of its own, and destructors that wait for them


if __name__ == "__main__":
    main(sys.argv[1:])
