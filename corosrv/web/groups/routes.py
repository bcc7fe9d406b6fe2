"""Aborts groups of requests."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from corosrv.base.errors import NotFound, Refused
from corosrv.web.groups.table import GroupTable
from corosrv.web.http.callers import caller
from corosrv.web.http.lean_flask import current
from corosrv.web.http.operation import operation
from corosrv.web.http.reply import json_response

_WORDS = {"": False, "0": False, "false": False, "1": True, "true": True}


class AbortedGroup(msgspec.Struct):
    """Says what an abort has ended: `n_requests`, whose answers are on their way."""

    id: str
    object: Literal["group.aborted"]
    n_requests: int
    partial: bool


class AbortQuery(msgspec.Struct):
    """Members of the query of an abort."""

    partial: Annotated[
        bool, Meta(description="Answer with what there is so far, and the finish reason `abort`, where that can be")
    ] = False


class AbortsElsewhere(Protocol):
    """Ends the requests of a caller's group in the other processes that share one."""

    def __call__(self, caller: str, name: str, *, keeps_partial: bool) -> int:
        """Returns how many there were. Waits for them, a short time."""


def blueprint(table: GroupTable, abort_elsewhere: AbortsElsewhere | None = None) -> Blueprint:
    """Makes the route."""
    routes = Blueprint("groups", __name__)

    @routes.delete("/v1/groups/<path:id>")
    @operation(
        "Groups",
        "Abort a group",
        "Ends the requests that name this group in `X-Group-Id`, those that wait and those that run. With `partial`, "
        "generated answers are what there is so far, with the finish reason `abort`; all others end in an error, whose "
        "code is `group_aborted`.",
        answer=AbortedGroup,
        statuses=(400, 404),
        parameters={"id": "the name of the group"},
        query=AbortQuery,
    )
    def abort(id: str) -> Response:
        keeps_partial = _partial(current(request).args.get("partial", ""))
        n_requests = table.abort(caller(), id, keeps_partial=keeps_partial)
        if abort_elsewhere is not None:
            n_requests += abort_elsewhere(caller(), id, keeps_partial=keeps_partial)
        if not n_requests:
            raise NotFound(f"no request runs in a group {id[:120]!r}", "id", "group_not_found")
        return json_response(AbortedGroup(id, "group.aborted", n_requests, keeps_partial))

    return routes


def _partial(word: str) -> bool:
    if word.lower() not in _WORDS:
        raise Refused(f"partial must be true or false, not {word[:40]!r}", "partial")
    return _WORDS[word.lower()]
