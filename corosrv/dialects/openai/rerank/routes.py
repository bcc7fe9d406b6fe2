"""The endpoint of reranking, under its four names, over any Worker."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.dialects.generation import vectors
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai import errors
from corosrv.dialects.openai.rerank import answers, api_docs, parse, schema
from corosrv.web.http.reply import json_response, register_errors


def blueprint(flow: RequestFlow) -> Blueprint:
    routes = Blueprint("rerank", __name__)
    register_errors(routes, errors.body)

    @routes.post("/v1/rerank")
    @routes.post("/rerank", endpoint="short")
    @routes.post("/v1/reranking", endpoint="reranking")
    @routes.post("/reranking", endpoint="reranking_short")
    @flow.once
    @api_docs.rerank
    def rerank() -> Response:
        body = flow.receive(schema.decoder)
        card = flow.worker.card(body.model)
        chunks = flow.collect(parse.job(body, card), body.priority)
        ranked = answers.best(vectors.in_order(chunks), body.top_n)
        if body.texts:
            return json_response(answers.scored_texts(ranked, body))
        return json_response(answers.ranking(ranked, vectors.prompt_tokens(chunks), card))

    return routes
