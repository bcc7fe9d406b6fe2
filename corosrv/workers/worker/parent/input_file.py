"""Makes messages of predictions: the input is inside, or in a file if it is large."""

from __future__ import annotations

import os
import tempfile
from typing import Any, cast

import msgspec
from gevent.hub import get_hub

from corosrv.contracts.jobs import PredictJob
from corosrv.workers.wire.messages import MAX_VALUE, Predict
from corosrv.workers.worker.values.private import make_private


def small_message(job: PredictJob) -> Predict | None:
    """Returns the message with the input inside; None if it is too large. Never waits. Raises what msgspec raises."""
    value = msgspec.json.encode(job.input)
    if len(value) > MAX_VALUE:
        return None
    return Predict(job.id, job.output_dir, input=_as_encoded(value), context=dict(job.context))


def large_message(job: PredictJob) -> Predict:
    """Returns the message with the input in a file of the job's directory. Waits for the disk. Raises OSError."""
    path = _spilled(msgspec.json.encode(job.input), job.output_dir)
    return Predict(job.id, job.output_dir, input_file=path, context=dict(job.context))


def _as_encoded(value: bytes) -> dict[str, Any]:
    """Wraps encoded JSON so that a message takes it for the value itself, and it is not encoded twice."""
    return cast("dict[str, Any]", msgspec.Raw(value))


def _spilled(value: bytes, directory: str) -> str:
    writing = get_hub().threadpool.spawn(_write, value, directory)
    try:
        path, error = writing.get()
    except BaseException:  # this greenlet is killed; whoever removes the directory then comes after its last file
        writing.wait()
        raise
    if error is not None:
        raise error
    return str(path)


def _write(value: bytes, directory: str) -> tuple[str, OSError | None]:
    """Writes a file; returns its path, or the error, since gevent prints whatever a thread of its pool raises."""
    try:
        make_private(directory)
        fd, path = tempfile.mkstemp(".json", "input-", directory)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
    except OSError as error:
        return "", error
    return path, None
