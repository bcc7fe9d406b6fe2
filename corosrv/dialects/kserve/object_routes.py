"""Serves objects over HTTP: values that clients store once and pass to many calls by reference."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import Refused
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs.infer import ObjRef
from corosrv.dialects.kserve.schema import KserveError, register_errors
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import READS, operation
from corosrv.web.http.reply import json_response
from corosrv.workers.objects import ObjectContent, ObjectStore

_PIECE = 256 << 10  # bytes of an answer that are handed on at once
_BINARY = "application/octet-stream"


class ObjectList(msgspec.Struct):
    """Holds the answer of a look-up by key: one object, or none."""

    objects: list[ObjRef]


def blueprint(store: ObjectStore, bodies: BodyReader) -> Blueprint:
    """Makes the routes of a store. Objects belong to the API key that stored them."""
    routes = Blueprint("objects", __name__)

    @routes.post("/v2/objects")
    @operation(
        "Objects",
        "Store a value",
        "The body is the value, as it stands; its Content-Type is kept. `key` finds it again, `ttl_s` says how many "
        "seconds it is kept (3600). The answer is a reference, which calls take in place of a tensor's data.",
        answer=ObjRef,
        error=KserveError,
        statuses=(*READS, 507),
    )
    def create() -> Response:
        return json_response(_store(store, bodies, request.args.get("key", "")), 201)

    @routes.put("/v2/objects/by-key/<key>")
    @operation(
        "Objects",
        "Store a value under a key",
        "Replaces what the key finds; references to the earlier value stay valid until they expire.",
        answer=ObjRef,
        error=KserveError,
        statuses=(*READS, 507),
    )
    def replace(key: str) -> Response:
        return json_response(_store(store, bodies, key), 201)

    @routes.get("/v2/objects")
    @operation("Objects", "Find a value by its key", answer=ObjectList, error=KserveError, statuses=(400,))
    def look_up() -> Response:
        key = request.args.get("key", "")
        if not key:
            raise Refused("name the key: GET /v2/objects?key=NAME", "key")
        ref = store.lookup(key, time.monotonic(), caller())
        return json_response(ObjectList([ref] if ref is not None else []))

    @routes.get("/v2/objects/<object_id>")
    @operation("Objects", "Read a value", media_type=_BINARY, error=KserveError, statuses=(404, 410))
    def read(object_id: str) -> Response:
        stored = store.get(object_id, time.monotonic(), caller())
        body: Any = b"" if request.method == "HEAD" else _pieces(stored.content.view())
        answer = Response(body, content_type=stored.ref.content_type, direct_passthrough=True)
        answer.content_length = stored.ref.size
        answer.headers["ETag"] = f'"{stored.ref.sha256}"'
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Content-Disposition"] = "attachment"  # a page of somebody's must not run under this address
        return answer

    @routes.delete("/v2/objects/<object_id>")
    @operation("Objects", "Delete a value", error=KserveError, statuses=(404, 410))
    def delete(object_id: str) -> Response:
        store.delete(object_id, time.monotonic(), caller())
        return json_response({})

    register_errors(routes)
    return routes


def _store(store: ObjectStore, bodies: BodyReader, key: str) -> ObjRef:
    """Stores the current request's body. Waits for it; raises what the body reader and the store raise."""
    incoming = current(request)
    ttl_s = _seconds(incoming.args.get("ttl_s", "3600"))
    body = bodies.read(incoming, store.max_object)
    content, digest = call_in_thread(_prepare, body)
    return store.create(
        content,
        digest,
        time.monotonic(),
        caller=caller(),
        key=key,
        ttl_s=ttl_s,
        content_type=incoming.headers.get("Content-Type", _BINARY),
    )


def _prepare(body: bytes) -> tuple[ObjectContent, str]:
    """Copies a body to where it is kept, and digests it; off the hub, for it may have 64 MiB."""
    return ObjectContent.copy([body]), hashlib.sha256(body).hexdigest()


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"ttl_s must be a number of seconds, not {text[:40]!r}", "ttl_s") from None


def _pieces(view: memoryview) -> Iterator[bytes]:
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])
