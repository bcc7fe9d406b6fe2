"""Describes files and batches for the API document."""

from __future__ import annotations

from corosrv.dialects.openai.batches.answer_types import (
    BatchBody,
    BatchesQuery,
    BatchList,
    BatchObject,
    DeletedFile,
    FileForm,
    FileList,
    FileObject,
    FilesQuery,
)
from corosrv.web.http.openapi import READS, operation

_FILE = {"id": "a file's id"}
_BATCH = {"id": "a batch's id"}
_OFF = " Needs a folder for files (`COROSRV_FILES_PATH`)."

upload = operation(
    "Files",
    "Upload a file",
    "The lines of a batch: JSON with `custom_id`, `method`, `url` and `body` each." + _OFF,
    form=FileForm,
    answer=FileObject,
    statuses=(*READS, 501, 503),
)
files = operation("Files", "List files", answer=FileList, statuses=(400, 501), query=FilesQuery)
file = operation("Files", "Show a file", answer=FileObject, statuses=(404, 501), parameters=_FILE)
content = operation(
    "Files",
    "Read a file's content",
    media_type="application/octet-stream",
    statuses=(404, 501),
    parameters=_FILE,
)
delete = operation("Files", "Delete a file", answer=DeletedFile, statuses=(404, 409, 501), parameters=_FILE)
create = operation(
    "Batches",
    "Make a batch",
    "Runs each line of a file as a request to one endpoint, behind all other requests. The answers are a file, in "
    "the order in which they are ready; failed lines are another one." + _OFF,
    body=BatchBody,
    answer=BatchObject,
    statuses=(*READS, 404, 501, 503),
)
batches = operation("Batches", "List batches", answer=BatchList, statuses=(400, 501), query=BatchesQuery)
batch = operation("Batches", "Show a batch", answer=BatchObject, statuses=(404, 501), parameters=_BATCH)
cancel = operation(
    "Batches",
    "Cancel a batch",
    "The lines that run are stopped; the answers of those that have ended stay.",
    answer=BatchObject,
    statuses=(400, 404, 501),
    parameters=_BATCH,
)
