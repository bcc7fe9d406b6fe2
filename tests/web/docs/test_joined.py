"""Two documents as one: what this server says of its routes, and what a predictor says of itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flask import Flask
from flask.testing import FlaskClient

from corosrv.base.errors import Starting
from corosrv.dialects.openai.answer_types import ErrorAnswer
from corosrv.web.docs import document

BESIDE: dict[str, Any] = {
    "openapi": "3.0.2",
    "paths": {"/predictions": {"post": {"operationId": "predict"}}},
    "components": {"schemas": {"Input": {"type": "object"}}},
}


def client(beside: Any) -> FlaskClient:
    app = Flask("docs")
    app.testing = True  # what is raised comes out
    app.register_blueprint(document(ErrorAnswer, needs_key=True, other_documents=[beside]))
    return app.test_client()


def test_both_documents_stand_in_the_one():
    joined = client(lambda: BESIDE).get("/openapi.json").json

    assert set(joined["paths"]) == {"/openapi.json", "/predictions"}
    assert joined["components"]["schemas"]["Input"] == {"type": "object"}
    assert "ErrorAnswer" in joined["components"]["schemas"]
    assert joined["openapi"].startswith("3.1")
    assert joined["components"]["securitySchemes"]


def test_the_other_may_change_and_is_not_kept():
    beside = msgspec.convert(BESIDE, dict[str, Any])
    asking = client(lambda: beside)
    asking.get("/openapi.json")

    beside["components"] = {"schemas": {"Input": {"type": "string"}}}

    assert asking.get("/openapi.json").json["components"]["schemas"]["Input"] == {"type": "string"}


def test_there_is_no_half_a_document():
    def starting() -> dict[str, Any]:
        raise Starting("not yet")

    with pytest.raises(Starting):
        client(starting).get("/openapi.json")
