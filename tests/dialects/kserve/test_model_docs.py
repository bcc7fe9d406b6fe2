"""The API document's part about the models."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from corosrv.contracts.jobs.infer import HandlerCard, ModelStanding
from corosrv.dialects.kserve import api_docs
from corosrv.dialects.kserve.schema import KserveError
from corosrv.formats.tensors import DATATYPES, TensorSpec
from corosrv.web import docs
from tests.dialects.kserve.app import make_app
from tests.dialects.kserve.generator_worker import GeneratorWorker


def paths_of(*cards: HandlerCard) -> dict[str, Any]:
    return api_docs.document(lambda: [ModelStanding(card, "READY") for card in cards])["paths"]


def example(operation: dict[str, Any]) -> Any:
    return operation["post"]["requestBody"]["content"]["application/json"]["examples"]["An example"]["value"]


@pytest.fixture
def client_with_docs(worker: GeneratorWorker) -> FlaskClient:
    app = make_app(worker)
    app.register_blueprint(docs.document(KserveError, False, [lambda: api_docs.document(worker.standings)]))
    return app.test_client()


def test_the_document_has_the_protocol_and_every_declared_model(client_with_docs: FlaskClient):
    document = client_with_docs.get("/openapi.json").json

    assert {
        "/v2",
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/generate_stream",
        "/v2/capabilities/infer",
        "/v2/models/add/infer",
        "/v2/models/add/versions/2/infer",
        "/v2/models/words/generate",
    } <= set(document["paths"])
    assert "/v2/models/echo/infer" not in document["paths"]
    assert "/v2/models/embed/infer" not in document["paths"]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/{name}/infer",
        "/v2/models/{name}/versions/{version}/generate",
        "/v2/models/{name}/generate_stream",
        "/v2/capabilities/infer",
        "/v2/models/words/generate",
    ],
)
def test_the_document_names_the_headers_that_calls_heed(client_with_docs: FlaskClient, path: str):
    parameters = client_with_docs.get("/openapi.json").json["paths"][path]["post"]["parameters"]

    headers = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
    assert headers == {"X-Priority", "X-Request-Timeout-Ms", "X-Session-Id", "Idempotency-Key"}


def test_the_document_names_no_idempotency_key_where_none_is_heeded():
    add = HandlerCard("add", inputs=[TensorSpec("a", "INT32", [1])])
    paths = api_docs.document(lambda: [ModelStanding(add, "READY")], takes_keys=False)["paths"]

    assert "Idempotency-Key" not in {header["name"] for header in paths["/v2/models/add/infer"]["post"]["parameters"]}


def test_every_reference_of_the_document_leads_somewhere(client_with_docs: FlaskClient):
    document = client_with_docs.get("/openapi.json").json
    schemas = document["components"]["schemas"]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert value.get("$ref", "").removeprefix("#/components/schemas/") in ("", *schemas)
            for member in value.values():
                check(member)
        elif isinstance(value, list):
            for member in value:
                check(member)

    check(document)


@pytest.mark.parametrize("path", ["/v2/models/add/infer", "/v2/models/words/infer", "/v2/models/words/generate"])
def test_an_example_of_a_model_can_be_sent_as_it_is(client_with_docs: FlaskClient, path: str):
    document = client_with_docs.get("/openapi.json").json

    assert client_with_docs.post(path, json=example(document["paths"][path])).status_code == 200


def test_a_model_says_what_it_takes_and_gives():
    card = HandlerCard(
        "m",
        inputs=[TensorSpec("a", "INT32", [-1, 2]), TensorSpec("b", "BOOL", [1], optional=True)],
        outputs=[TensorSpec("c", "FP32", [])],
    )

    operation = paths_of(card)["/v2/models/m/infer"]

    assert operation["post"]["description"] == (
        "Takes `a` (INT32 [-1, 2]), `b` (BOOL [1], optional). Gives `c` (FP32 [])."
    )
    assert example(operation)["inputs"] == [{"name": "a", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_examples_are_of_their_datatype_where_json_has_it(datatype: str):
    (operation,) = paths_of(HandlerCard("m", inputs=[TensorSpec("a", datatype, [2])])).values()

    content = operation["post"]["requestBody"]["content"]["application/json"]
    assert ("examples" in content) is (datatype not in ("FP16", "BF16"))


def test_a_large_tensor_has_no_example():
    (operation,) = paths_of(HandlerCard("m", inputs=[TensorSpec("a", "FP32", [224, 224])])).values()

    assert "examples" not in operation["post"]["requestBody"]["content"]["application/json"]
