"""The route that aborts a group of requests, and the header by which a request joins one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from corosrv.base.errors import NotFound, Refused
from corosrv.web.groups.table import GroupMember, GroupTable
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import operation
from corosrv.web.http.reply import json_response
from corosrv.web.http.terms import QueueHeaders
from corosrv.web.kept.keyed_answers import keep_if

GROUP = "X-Group-Id"
MAX_NAME = 255  # characters

GROUP_FIELD = "HTTP_X_GROUP_ID"  # in WSGI's words
_PLAIN = re.compile(rf"[!-~]{{1,{MAX_NAME}}}")


class GenerateHeaders(QueueHeaders):
    """Headers of requests whose answers may belong together."""

    group: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_NAME,
            pattern="^[!-~]+$",
            description="A name for the requests that belong together: they go to one upstream where that can be, and "
            "`DELETE /v1/groups/{id}` ends them",
        ),
    ] = msgspec.field(name=GROUP, default="")


def group_of(environ: Mapping[str, Any]) -> str:
    """Returns the group that a request names; empty if it names none. Raises Refused, which names the header."""
    if (name := environ.get(GROUP_FIELD)) is None:
        return ""
    name = name.strip()
    if not _PLAIN.fullmatch(name):
        raise Refused(f"{GROUP}: must be 1 to {MAX_NAME} characters of printable ASCII without spaces", GROUP)
    return str(name)


def join_group(table: GroupTable) -> GroupMember | None:
    """Adds the request at hand to the group that it names; None if it names none.

    What an abort leaves of its answer is not kept under its Idempotency-Key. Raises Refused, which names the header,
    and TooManyMembers.
    """
    name = group_of(current(request).environ)
    if not name:
        return None
    member = table.join(caller(), name)
    keep_if(lambda: not member.is_aborted)
    return member


_WORDS = {"": False, "0": False, "false": False, "1": True, "true": True}


class AbortedGroup(msgspec.Struct):
    """The outcome of an abort: `n_requests` were ended, and their answers are on their way."""

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
