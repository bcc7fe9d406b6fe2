"""Types of the bodies, queries and answers of files and batches; the folder keeps its records in the same form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused

T = TypeVar("T")

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"]
Purpose = Literal["batch", "batch_output"]
MOST_TEXT = 512  # characters of a custom_id, or of a value of metadata

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

# The states that may follow each; those that nothing follows are the ends.
NEXT: dict[str, frozenset[str]] = {
    "validating": frozenset({"in_progress", "failed", "cancelled", "expired"}),
    "in_progress": frozenset({"finalizing", "failed", "cancelled", "expired"}),
    "finalizing": frozenset({"completed", "failed"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}


class FileObject(msgspec.Struct):
    """A file as clients see it. Times are Unix time."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct):
    """A page of files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class FileForm(msgspec.Struct):
    """Parts of the form by which a file is uploaded."""

    file: Annotated[str, Meta(description="JSON lines", extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]


class FilesQuery(msgspec.Struct):
    """Members of the query of a page of files."""

    after: Annotated[str | None, Meta(description="The id of the file before the page")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Annotated[Literal["asc", "desc"], Meta(description="`desc`: the newest file first")] = "desc"
    purpose: Purpose | None = None


class DeletedFile(msgspec.Struct):
    """The answer to a file's deletion."""

    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class RequestCounts(msgspec.Struct):
    """Counts of a batch's lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(msgspec.Struct):
    """One reason why a batch failed; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchFaults(msgspec.Struct):
    """The reasons why a batch failed, the first hundred."""

    data: list[BatchFault]
    object: Literal["list"] = "list"


class BatchObject(msgspec.Struct):
    """A batch as clients see it. Times are Unix time."""

    id: str
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: BatchStatus = "validating"
    errors: BatchFaults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: Literal["batch"] = "batch"

    @property
    def is_ended(self) -> bool:
        return self.status != "cancelling" and not NEXT[self.status]

    def enter(self, status: BatchStatus, now: float) -> None:
        """Moves to another state. Raises RuntimeError for a move that there is not."""
        if status not in NEXT[self.status]:
            raise RuntimeError(f"{self.id}: no way from {self.status} to {status}")
        self.status = status
        setattr(self, f"{status}_at", int(now))


class BatchList(msgspec.Struct):
    """A page of batches."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class BatchesQuery(msgspec.Struct):
    """Members of the query of a page of batches."""

    after: Annotated[str | None, Meta(description="The id of the batch before the page")] = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body by which a batch is made."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Annotated[
        str, Meta(pattern="^[1-9][0-9]{0,2}[mhd]$", description="Minutes, hours or days, as `24h`, 30 days at most")
    ]
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None


def rest_behind(ids: list[str], after: str | None, order: str, name: str = "after") -> list[str]:
    """Returns the ids of a page and those that follow it. Raises Refused."""
    if order == "desc":
        ids.reverse()
    if after is None:
        return ids
    if after not in ids:
        raise Refused(f"{name}: there is no '{after[:80]}' here", name)
    return ids[ids.index(after) + 1 :]


def first(items: Iterator[T], n: int) -> tuple[list[T], bool]:
    """Returns the first `n` items, and whether there are more."""
    data: list[T] = []
    for item in items:
        if len(data) == n:
            return data, True
        data.append(item)
    return data, False


def ends(ids: list[str]) -> tuple[str | None, str | None]:
    return (ids[0], ids[-1]) if ids else (None, None)
