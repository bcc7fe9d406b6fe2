"""A prediction as a message: its input within, or in a file where it is large."""

from __future__ import annotations

import os
import tempfile
from typing import Any, cast

import msgspec
from gevent.hub import get_hub

from corosrv.jobs import PredictJob
from corosrv.wire.messages import MAX_VALUE, Predict
from corosrv.worker.values.private import make_private


def small_message(job: PredictJob) -> Predict | None:
    """The message with the input within; None if the input is too large. Never waits. Raises what no JSON can hold."""
    value = msgspec.json.encode(job.input)
    if len(value) > MAX_VALUE:
        return None
    return Predict(job.id, job.output_dir, input=_as_encoded(value), context=dict(job.context))


def large_message(job: PredictJob) -> Predict:
    """The message with the input in a file, in the job's directory. Waits while it is written. Raises OSError."""
    path = _spilled(msgspec.json.encode(job.input), job.output_dir)
    return Predict(job.id, job.output_dir, input_file=path, context=dict(job.context))


def _as_encoded(value: bytes) -> dict[str, Any]:
    """What is not encoded twice; goes for the value itself in a message that is sent."""
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
    """The file's path, or what went wrong: gevent prints what a thread of its pool raises, whoever may expect it."""
    try:
        make_private(directory)
        fd, path = tempfile.mkstemp(".json", "input-", directory)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
    except OSError as error:
        return "", error
    return path, None
