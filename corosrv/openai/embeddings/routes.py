"""The endpoints of embeddings over any Worker."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.errors import NotOffered
from corosrv.generation import vectors
from corosrv.generation.exchange import Desk
from corosrv.http.reply import json_response
from corosrv.openai import errors
from corosrv.openai.embeddings import answers, described, jobs, schema


def blueprint(desk: Desk, is_on: bool) -> Blueprint:
    """OpenAI's, and llama-server's own. `is_on`: off, they are answered with 501."""
    routes = Blueprint("embeddings", __name__)
    errors.register(routes)

    @routes.before_request
    def check_on() -> None:
        if not is_on:
            raise NotOffered("embeddings are switched off (COROSRV_EMBEDDINGS=0)")

    @routes.post("/v1/embeddings")
    @described.embed
    def embed() -> Response:
        body = desk.decode(desk.read(), schema.decoder)
        card = desk.worker.card(body.model)
        job = jobs.job(body, card, desk.worker.vocabulary(body.model))
        chunks, prompt_tokens = desk.collect(job)
        in_base64 = body.encoding_format == "base64"
        return json_response(answers.whole(vectors.in_order(chunks), prompt_tokens, card, in_base64))

    @routes.post("/embedding")
    @routes.post("/embeddings", endpoint="native_embeddings")
    @described.embed_native
    def embed_native() -> Response:
        body = desk.decode(desk.read(), schema.native_decoder)
        job = jobs.native_job(body, desk.worker.card(body.model), desk.worker.vocabulary(body.model))
        chunks, prompt_tokens = desk.collect(job)
        return json_response(answers.native(vectors.in_order(chunks), prompt_tokens, job.pooling))

    return routes
