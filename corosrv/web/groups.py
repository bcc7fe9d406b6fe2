"""Groups of requests, which are aborted together: their table, the header that names one, and the route that aborts it.

A group is its caller's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from corosrv.base.errors import GroupAborted, NotFound, Refused, TooManyMembers
from corosrv.base.waits import ThreadLock
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import operation
from corosrv.web.http.reply import json_response
from corosrv.web.http.terms import QueueHeaders
from corosrv.web.kept.keyed_answers import keep_if


class GroupMember:
    """Stands for one request of a group, from its arrival to its answer.

    An abort ends what the request was bound to. The first abort decides whether partial answers are kept.
    """

    __slots__ = ("_cancel", "_leave", "is_aborted", "keeps_partial", "name")

    def __init__(self, name: str, leave: Callable[[GroupMember], None]) -> None:
        self.name = name
        self.is_aborted = False
        self.keeps_partial = False
        self._leave = leave
        self._cancel: Callable[[], None] | None = None

    def bind(self, cancel: Callable[[], None]) -> None:
        """Sets what an abort calls, which must not wait; calls it at once if the group was aborted before."""
        self._cancel = cancel
        if self.is_aborted:
            cancel()

    def abort(self, *, keeps_partial: bool) -> None:
        """Ends the request. Never waits; twice is harmless."""
        if not self.is_aborted:
            self.is_aborted, self.keeps_partial = True, keeps_partial
        if self._cancel is not None:
            self._cancel()

    def error(self) -> GroupAborted:
        """Makes the error that ends the request after an abort."""
        return GroupAborted(self.name)

    def leave(self) -> None:
        """Ends the membership: the request was answered. Twice is harmless."""
        self._cancel = None
        self._leave(self)


MAX_MEMBERS = 100_000  # requests that may be in groups at once

GroupKey = tuple[str, str]  # caller and name


class GroupTable:
    """Keeps the members of all groups; a group is there from its first request to the end of its last.

    Usable from any thread. A group belongs to the caller whose requests named it: others have groups of that name of
    their own, and cannot see this one.
    """

    def __init__(self, max_members: int = MAX_MEMBERS) -> None:
        self._max_members = max_members
        self._members: dict[GroupKey, dict[GroupMember, None]] = {}  # in the order of their arrivals
        self.n_members = 0
        self._lock = ThreadLock()

    @property
    def n_groups(self) -> int:
        return len(self._members)

    def join(self, caller: str, name: str) -> GroupMember:
        """Adds a request to a group, whose `leave` has to be called. Raises TooManyMembers."""
        key = (caller, name)
        member = GroupMember(name, lambda member: self._remove(key, member))
        with self._lock:
            if self.n_members >= self._max_members:
                raise TooManyMembers(self._max_members)
            self._members.setdefault(key, {})[member] = None
            self.n_members += 1
        return member

    def _remove(self, key: GroupKey, member: GroupMember) -> None:
        with self._lock:
            members = self._members.get(key)
            if members is None or member not in members:
                return
            del members[member]
            self.n_members -= 1
            if not members:
                del self._members[key]

    def abort(self, caller: str, name: str, *, keeps_partial: bool) -> int:
        """Ends the requests of a group, and returns how many of the caller's there were. Never waits.

        With `keeps_partial` those that can answer with what there is so far; the others in GroupAborted.
        """
        with self._lock:
            members = list(self._members.get((caller, name), ()))
        for member in members:
            member.abort(keeps_partial=keeps_partial)
        return len(members)


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
