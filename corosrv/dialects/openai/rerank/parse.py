"""Reranking, the way in: bodies to jobs."""

from __future__ import annotations

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import ModelCard, RerankJob
from corosrv.dialects.openai.rerank import schema
from corosrv.formats.bodies import check_text


def job(body: schema.RerankBody, card: ModelCard) -> RerankJob:
    """Makes a job with one score for each document. Raises Refused, which names the parameter."""
    if "rerank" not in card.capabilities:
        raise NotOffered(f"the model '{card.id}' ranks no documents")
    if body.documents and body.texts:
        raise Refused("documents and texts are not allowed together", "texts")
    param, documents = ("texts", body.texts) if body.texts else ("documents", body.documents)
    if not documents:
        raise Refused("documents is required", "documents", "missing_required_parameter")
    checked = tuple(check_text(document, f"{param}[{i}]") for i, document in enumerate(documents))
    return RerankJob(check_text(body.query, "query"), checked, body.model)
