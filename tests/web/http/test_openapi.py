"""The API's document, from routes that say what they do."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from flask import Flask
from msgspec import Meta

from corosrv.web.http import openapi


class Error(msgspec.Struct):
    message: str


class OtherError(msgspec.Struct):
    words: str


class Body(msgspec.Struct):
    """The body of the example's request."""

    n: Annotated[int, Meta(ge=1, le=5)]
    text: str | None = None


class Answer(msgspec.Struct):
    text: str


class Query(msgspec.Struct):
    action: str
    depth: int = 0


def view(**said: Any) -> Any:
    return openapi.operation("Things", "Do it", **{"statuses": openapi.READS, **said})(lambda **_: "")


def described(*rules: tuple[str, str, Any], prefix: str = "") -> dict[str, Any]:
    app = Flask(__name__, static_folder=None)
    for number, (method, path, function) in enumerate(rules):
        app.add_url_rule(prefix + path, endpoint=str(number), view_func=function, methods=[method])
    found = openapi.routes(app.url_map.iter_rules(), app.view_functions, prefix)
    return openapi.document(
        found,
        default_error=Error,
        title="T",
        text="",
        version="1",
        server=prefix or "/",
        needs_key=True,
        tags={"Things": "Words"},
    )


@pytest.fixture
def post() -> dict[str, Any]:
    done = described(("POST", "/things/<int:id>", view(body=Body, answer=Answer, events=Answer, query=Query)))
    return done["paths"]["/things/{id}"]["post"]


def test_bodies_and_answers_are_the_schemas_of_the_types_that_validate():
    done = described(("POST", "/things", view(body=Body, answer=Answer)))

    asked = done["paths"]["/things"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": "#/components/schemas/Body"}
    assert done["components"]["schemas"]["Body"] == {
        "title": "Body",
        "description": "The body of the example's request.",
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5},
            "text": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["n"],
    }


def test_answers_are_told_with_their_statuses_and_shapes(post):
    assert set(post["responses"]) == {"200", "400", "401", "413", "415"}
    assert set(post["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    refused = post["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/Error"}


def test_an_event_s_data_are_told(post):
    event = post["responses"]["200"]["content"]["text/event-stream"]["schema"]

    kinds = event["properties"]["data"]["contentSchema"]["anyOf"]
    assert kinds == [{"$ref": "#/components/schemas/Answer"}, {"$ref": "#/components/schemas/Error"}]


def test_a_dialect_s_own_errors_are_told_as_its_own():
    done = described(("POST", "/things", view(error=OtherError)))

    refused = done["paths"]["/things"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/OtherError"}


def test_parameters_come_from_the_path_and_the_query(post):
    told = [(each["name"], each["in"], each["required"], each["schema"]["type"]) for each in post["parameters"]]

    assert told == [
        ("id", "path", True, "integer"),
        ("action", "query", True, "string"),
        ("depth", "query", False, "integer"),
    ]


def test_another_name_of_a_route_says_so():
    function = view()
    paths = described(("GET", "/things", function), ("GET", "/v1/things", function))["paths"]

    assert paths["/things"]["get"]["x-alias-of"] == "/v1/things"
    assert "x-alias-of" not in paths["/v1/things"]["get"]


def test_a_view_without_key_asks_for_none():
    done = described(("GET", "/open", openapi.without_key(view())), ("GET", "/closed", view()))

    assert done["paths"]["/open"]["get"]["security"] == []
    assert "401" not in done["paths"]["/open"]["get"]["responses"]
    assert "401" in done["paths"]["/closed"]["get"]["responses"]


def test_others_routes_and_other_prefixes_are_left_out():
    done = described(("GET", "/mine", view()), ("GET", "/theirs", lambda: ""), prefix="/llm")

    assert list(done["paths"]) == ["/mine"]
    assert done["servers"] == [{"url": "/llm"}]


def test_every_operation_has_an_id_of_its_own(post):
    assert post["operationId"] == "post_things_id"
