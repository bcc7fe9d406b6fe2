"""Routes KServe's v2 protocol to any InferWorker: parse, submit, answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import CapabilityTarget, InferWorker, ModelTarget
from corosrv.dialects.kserve import api_docs, metadata, schema
from corosrv.dialects.kserve.endpoint import EndpointLimits, InferEndpoint
from corosrv.dialects.kserve.infer_request import CAPABILITY_DECODER, INFER_DECODER
from corosrv.dialects.kserve.parameters import parse_capability
from corosrv.dialects.kserve.schema import IndexBody
from corosrv.formats.bodies import decode_unscanned
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.openapi import View, with_idempotency_key, without_key
from corosrv.web.http.reply import json_response
from corosrv.web.kept.keyed_answers import KeyedAnswers
from corosrv.workers.objects import ObjectStore

_MODEL = "/v2/models/<name>"
_VERSION = f"{_MODEL}/versions/<version>"
_MAX_INDEX_BODY = 4096  # bytes
_INDEX_DECODER = msgspec.json.Decoder(IndexBody)


def blueprint(
    worker: InferWorker,
    bodies: BodyReader,
    stats: HttpStats,
    limits: EndpointLimits,
    *,
    check_ready: Callable[[], None],
    objects: ObjectStore | None = None,
    takes_keys: bool = True,
    answers: KeyedAnswers | None = None,
) -> Blueprint:
    """Makes the routes. `check_ready`: raises the Unavailable that calls would meet now.

    `takes_keys`: the worker heeds idempotency keys, and the API document says so. `answers`: lets clients resume their
    streams.
    """
    routes = Blueprint("kserve", __name__)
    keyed: Callable[[View], View] = with_idempotency_key if takes_keys else lambda view: view
    resumable = (answers or KeyedAnswers(bodies, max_bytes=0)).once(limits.max_body_bytes, is_kept=False)
    endpoint = InferEndpoint(worker, bodies, stats, limits, objects)

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
