"""Reads the header by which a request says to which group it belongs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from flask import request
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.web.groups.member import GroupMember
from corosrv.web.groups.table import GroupTable
from corosrv.web.http.callers import caller
from corosrv.web.http.keyed_answers import keep_if
from corosrv.web.http.lean_flask import current
from corosrv.web.http.terms import QueueHeaders

GROUP = "X-Group-Id"
MAX_NAME = 255  # characters

_FIELD = "HTTP_X_GROUP_ID"  # in WSGI's words
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
    if (name := environ.get(_FIELD)) is None:
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
