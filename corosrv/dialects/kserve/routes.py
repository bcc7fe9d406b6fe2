"""Routes KServe's v2 protocol to any InferWorker: parse, submit, answer. And serves objects over HTTP.

Objects are values that clients store once and pass to many calls by reference.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import CorosrvError, ObjectNotFound, Refused
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs.infer import CapabilityTarget, InferWorker, ModelTarget, ObjRef
from corosrv.dialects.kserve import api_docs, metadata, schema
from corosrv.dialects.kserve.endpoint import InferEndpoint
from corosrv.dialects.kserve.infer_request import CAPABILITY_DECODER, INFER_DECODER
from corosrv.dialects.kserve.parameters import parse_capability
from corosrv.dialects.kserve.schema import IndexBody, KserveError, register_errors
from corosrv.formats.bodies import decode_unscanned
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.openapi import READS, View, operation, with_idempotency_key, without_key
from corosrv.web.http.reply import json_response
from corosrv.web.http.siblings import AskOthers, is_repeated, no_others
from corosrv.web.http.sse import StreamLimits
from corosrv.web.kept.keyed_answers import KeyedAnswers
from corosrv.workers.objects import ObjectContent, ObjectStore

_MODEL = "/v2/models/<name>"
_VERSION = f"{_MODEL}/versions/<version>"
_MAX_INDEX_BODY = 4096  # bytes
_INDEX_DECODER = msgspec.json.Decoder(IndexBody)


def blueprint(
    worker: InferWorker,
    bodies: BodyReader,
    max_body_bytes: int,
    streams: StreamLimits,
    *,
    check_ready: Callable[[], None],
    objects: ObjectStore | None = None,
    takes_keys: bool = True,
    answers: KeyedAnswers | None = None,
) -> Blueprint:
    """Makes the routes. `max_body_bytes`: of a body, and of what it inflates to. `check_ready`: raises the Unavailable
    that calls would meet now.

    `takes_keys`: the worker heeds idempotency keys, and the API document says so. `answers`: lets clients resume their
    streams.
    """
    routes = Blueprint("kserve", __name__)
    keyed: Callable[[View], View] = with_idempotency_key if takes_keys else lambda view: view
    resumable = (answers or KeyedAnswers(bodies, max_bytes=0)).once(max_body_bytes, is_kept=False)
    endpoint = InferEndpoint(worker, bodies, max_body_bytes, streams, objects)

    @routes.get("/v2")
    @routes.get("/v2/", endpoint="server_slash")
    @api_docs.server
    def server() -> Response:
        return json_response(metadata.server_metadata())

    @routes.get("/v2/health/live")
    @api_docs.live
    @without_key
    def live() -> Response:
        return json_response(metadata.LiveAnswer(live=True))

    @routes.get("/v2/health/ready")
    @api_docs.ready
    @without_key
    def ready() -> Response:
        try:
            check_ready()
        except CorosrvError as error:
            return metadata.not_ready(error)
        return metadata.ready()

    @routes.get("/v2/models")
    @api_docs.models
    def list_models() -> Response:
        return json_response(metadata.model_names(worker.standings()))

    @routes.post("/v2/repository/index")
    @api_docs.index
    def list_versions() -> Response:
        body = endpoint.read(_MAX_INDEX_BODY) or b"{}"
        return json_response(metadata.index(worker.standings(), decode_unscanned(body, _INDEX_DECODER).ready))

    @routes.get(_MODEL)
    @routes.get(_VERSION, endpoint="model_version")
    @api_docs.model
    def describe(name: str, version: str = "") -> Response:
        card = worker.find(ModelTarget(name, version))
        return json_response(metadata.model_metadata(card, worker.standings()))

    @routes.get(f"{_MODEL}/ready")
    @routes.get(f"{_VERSION}/ready", endpoint="ready_version")
    @api_docs.model_ready
    def model_ready(name: str, version: str = "") -> Response:
        card = worker.find(ModelTarget(name, version))
        return metadata.model_ready(name, metadata.standing_of(card, worker.standings()))

    @routes.post(f"{_MODEL}/infer")
    @routes.post(f"{_VERSION}/infer", endpoint="infer_version")
    @api_docs.infer
    @keyed
    def infer(name: str, version: str = "") -> Response:
        return endpoint.infer(ModelTarget(name, version), endpoint.decode(INFER_DECODER))

    @routes.post(f"{_MODEL}/generate")
    @routes.post(f"{_VERSION}/generate", endpoint="generate_version")
    @api_docs.generate
    @keyed
    def generate(name: str, version: str = "") -> Response:
        return endpoint.generate(ModelTarget(name, version))

    @routes.post(f"{_MODEL}/generate_stream")
    @routes.post(f"{_VERSION}/generate_stream", endpoint="generate_stream_version")
    @api_docs.generate_stream
    @keyed
    @resumable
    def generate_stream(name: str, version: str = "") -> Response:
        return endpoint.generate_stream(ModelTarget(name, version))

    @routes.post("/v2/capabilities/infer")
    @api_docs.infer_capability
    @keyed
    def infer_capability() -> Response:
        decoded = endpoint.decode(CAPABILITY_DECODER)
        body = decoded.body
        asked = parse_capability(request.headers)
        is_fuzzy = asked.is_fuzzy if body.fuzzy is msgspec.UNSET else body.fuzzy
        target = CapabilityTarget({**asked.query, **body.capability}, {**asked.prefer, **body.prefer}, is_fuzzy)
        return endpoint.infer(target, decoded)

    schema.register_errors(routes)
    return routes


_PIECE = 256 << 10  # bytes of an answer that are handed on at once
_BINARY = "application/octet-stream"


class ObjectList(msgspec.Struct):
    """Holds the answer of a look-up by key: one object, or none."""

    objects: list[ObjRef]


def objects_blueprint(store: ObjectStore, bodies: BodyReader, ask_other_workers: AskOthers = no_others) -> Blueprint:
    """Makes the routes of a store. Objects belong to the API key that stored them.

    `ask_other_workers`: sends the request at hand to the other processes, whose handlers may have stored what it names.
    """
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
        try:
            stored = store.get(object_id, time.monotonic(), caller())
            view, kind, etag = stored.content.view(), stored.ref.content_type, f'"{stored.ref.sha256}"'
        except ObjectNotFound:
            found = None if is_repeated(request) else store.find_elsewhere(object_id, caller())
            if found is None:
                raise
            view, kind, etag = memoryview(found.content), found.content_type, found.etag
        body: Any = b"" if request.method == "HEAD" else _pieces(view)
        answer = Response(body, content_type=kind, direct_passthrough=True)
        answer.content_length = view.nbytes
        answer.headers["ETag"] = etag
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Content-Disposition"] = "attachment"  # a page of somebody's must not run under this address
        return answer

    @routes.delete("/v2/objects/<object_id>")
    @operation("Objects", "Delete a value", error=KserveError, statuses=(404, 410))
    def delete(object_id: str) -> Response:
        try:
            store.delete(object_id, time.monotonic(), caller())
        except ObjectNotFound:
            if all(other.status != HTTPStatus.OK for other in ask_other_workers(request)):
                raise
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
