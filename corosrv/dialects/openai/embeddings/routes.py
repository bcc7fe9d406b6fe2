"""The endpoints of embeddings over any Worker."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.base.errors import NotOffered
from corosrv.dialects.generation import vectors
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import errors
from corosrv.dialects.openai.embeddings import answers, api_docs, parse, schema
from corosrv.web.http.reply import json_response, register_errors


def blueprint(flow: RequestFlow, is_on: bool) -> Blueprint:
    """OpenAI's, and llama-server's own. `is_on`: off, they are answered with 501."""
    routes = Blueprint("embeddings", __name__)
    register_errors(routes, errors.body)

    @routes.before_request
    def check_on() -> None:
        if not is_on:
            raise NotOffered("embeddings are switched off (COROSRV_EMBEDDINGS=0)")

    @routes.post("/v1/embeddings")
    @flow.once
    @api_docs.embed
    def embed() -> Response:
        body = flow.receive(schema.decoder)
        card = flow.worker.card(body.model)
        job = parse.job(body, card, flow.worker.vocabulary(body.model))
        chunks = flow.collect(job, body.priority)
        in_base64 = body.encoding_format == "base64"
        return json_response(
            answers.embeddings(vectors.in_order(chunks), vectors.prompt_tokens(chunks), card, in_base64)
        )

    @routes.post("/embedding")
    @routes.post("/embeddings", endpoint="native_embeddings")
    @flow.once
    @api_docs.embed_native
    def embed_native() -> Response:
        body = flow.receive(schema.native_decoder)
        job = parse.native_job(body, flow.worker.card(body.model), flow.worker.vocabulary(body.model))
        chunks = flow.collect(job, body.priority)
        return json_response(answers.native(vectors.in_order(chunks), vectors.prompt_tokens(chunks), job.pooling))

    return routes
