# ruff: noqa: UP045 - authors write Optional, too
import enum
from collections.abc import Iterator
from typing import Any, Literal, Optional

import jsonschema
import pytest
from typing_extensions import NotRequired, Required, TypedDict

from corosrv.worker import BaseModel, ConcatenateIterator, File, Input, Path, Secret, streaming
from corosrv.workers.worker.signatures.signature import document, read


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Inner(BaseModel):
    where: Path
    parent: Optional["Inner"] = None


class Answer(BaseModel):
    top_score: float
    inner: Inner
    note: str | None = None


def _input(annotation: Any, *default: Any) -> dict[str, Any]:
    def run(the_field): ...

    run.__annotations__["the_field"] = annotation
    run.__defaults__ = default or None
    return document(read(run))["components"]["schemas"]["Input"]


def _output(annotation: Any) -> dict[str, Any]:
    def run(): ...

    run.__annotations__["return"] = annotation
    return document(read(run))["components"]["schemas"]["Output"]


@pytest.mark.parametrize(
    ("annotation", "default", "schema"),
    [
        (
            str,
            Input(min_length=1, max_length=9, regex="^a"),
            {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a"},
        ),
        (int, Input(ge=1, le=5, default=2), {"type": "integer", "minimum": 1, "maximum": 5, "default": 2}),
        (float, 1, {"type": "number", "default": 1.0}),
        (bool, Input(description="x", deprecated=True), {"type": "boolean", "description": "x", "deprecated": True}),
        (Path, Input(accept="image/*"), {"type": "string", "format": "uri", "x-cog-accept": "image/*"}),
        (File, Input(), {"type": "string", "format": "uri"}),
        (Secret, Input(), {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}),
        (Optional[int], Input(), {"type": "integer", "nullable": True}),
        (list[int], Input(ge=1), {"type": "array", "items": {"type": "integer", "minimum": 1}}),
        (
            list[Path] | None,
            None,
            {"type": "array", "items": {"type": "string", "format": "uri"}, "nullable": True, "default": None},
        ),
        (dict, Input(), {"type": "object"}),
        (dict[str, int], Input(), {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Any, Input(), {}),
        (int | str, Input(), {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    ],
)
def test_an_input_is_described_as_cogs_clients_expect(annotation, default, schema):
    described = _input(annotation, default)["properties"]["the_field"]

    assert described == {"x-order": 0, "title": "The Field"} | schema


def test_a_secrets_default_is_not_told():
    assert "hunter2" not in str(_input(Secret, "hunter2"))


@pytest.mark.parametrize(
    ("annotation", "default", "kind", "values"),
    [
        (str, Input(choices=["a", "b"]), "string", ["a", "b"]),
        (int, Input(choices=[1, 2], default=2), "integer", [1, 2]),
        (Literal["a", "b"], "a", "string", ["a", "b"]),
        (Size, Size.LARGE, "integer", [1, 2]),
    ],
)
def test_choices_are_an_enum_named_like_their_field(annotation, default, kind, values):
    def run(size): ...

    run.__annotations__["size"] = annotation
    run.__defaults__ = (default,)
    schemas = document(read(run))["components"]["schemas"]

    assert schemas["Input"]["properties"]["size"]["allOf"] == [{"$ref": "#/components/schemas/size"}]
    assert "title" not in schemas["Input"]["properties"]["size"]
    assert (schemas["size"]["type"], schemas["size"]["enum"], schemas["size"]["title"]) == (kind, values, "size")


def test_a_field_named_like_a_component_does_not_take_its_place():
    def run(Status: str = Input(choices=["a", "b"])) -> str: ...

    schemas = document(read(run))["components"]["schemas"]

    assert schemas["Status"]["enum"][0] == "starting"
    assert schemas["Input"]["properties"]["Status"]["allOf"] == [{"$ref": "#/components/schemas/Status_"}]
    assert schemas["Status_"]["enum"] == ["a", "b"]


def test_fields_are_in_order_and_the_required_ones_are_listed():
    def run(b: str, a: int = 1, c: Optional[str] = None, d: Path = Input()) -> str: ...

    schema = document(read(run))["components"]["schemas"]["Input"]

    assert [(name, field["x-order"]) for name, field in schema["properties"].items()] == [
        ("b", 0), ("a", 1), ("c", 2), ("d", 3)
    ]  # fmt: skip
    assert schema["required"] == ["b", "d"]
    assert "required" not in _input(int, 3)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (Path, {"type": "string", "format": "uri"}),
        (list[Path], {"type": "array", "items": {"type": "string", "format": "uri"}}),
        (Any, {}),
        (None, {}),
        (Optional[str], {"type": "string", "nullable": True}),
        (Iterator[int], {"type": "array", "items": {"type": "integer"}, "x-cog-array-type": "iterator"}),
        (
            ConcatenateIterator[str],
            {
                "type": "array",
                "items": {"type": "string"},
                "x-cog-array-type": "iterator",
                "x-cog-array-display": "concatenate",
            },
        ),
    ],
)
def test_an_output_is_described_as_cogs_clients_expect(annotation, schema):
    assert _output(annotation) == {"title": "Output"} | schema


def test_a_models_fields_are_described_within_each_other():
    inner = {"where": {"title": "Where", "type": "string", "format": "uri"}}
    inner["parent"] = {"title": "Parent", "type": "object", "nullable": True}

    schema = _output(Answer)

    assert schema["required"] == ["top_score", "inner"]
    assert schema["properties"]["inner"] == {
        "title": "Inner", "type": "object", "properties": inner, "required": ["where"]
    }  # fmt: skip
    assert schema["properties"]["note"] == {"title": "Note", "type": "string", "nullable": True}


def test_what_an_object_is_made_with_may_be_missing_from_it_and_what_it_has_of_itself_is_not_required():
    class Part(TypedDict, total=False):
        size: Required[int]
        unit: str

    class Whole(TypedDict):
        text: Optional[str]
        part: NotRequired[Part]

    class Model(BaseModel):
        score: float
        text: str = ""
        whole: Whole | None = None

    def run() -> Model: ...

    schema = document(read(run))["components"]["schemas"]["Output"]
    whole = schema["properties"]["whole"]

    assert (schema["required"], whole["required"]) == (["score"], ["text"])
    assert whole["properties"]["part"] == {
        "title": "Part",
        "type": "object",
        "properties": {"size": {"title": "Size", "type": "integer"}, "unit": {"title": "Unit", "type": "string"}},
        "required": ["size"],
    }


def test_a_pydantic_model_is_described_too():
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Answer", text=(str, ...), score=(Optional[float], None))

    assert _output(model)["required"] == ["text"]
    assert _output(model)["properties"]["score"] == {"title": "Score", "type": "number", "nullable": True}


def test_streaming_is_marked_where_predictions_are_made():
    @streaming
    def followed() -> Iterator[str]: ...

    def alone() -> Iterator[str]: ...

    assert document(read(followed))["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert "x-cog-streaming" not in document(read(alone))["paths"]["/predictions"]["post"]


def test_the_document_has_every_endpoint_and_component_and_no_loose_reference():
    def run(prompt: str, size: Size, tags: list[str] = Input(choices=["a"], default=["a"])) -> Answer: ...

    made = document(read(run))
    schemas = made["components"]["schemas"]

    assert {path: set(methods) for path, methods in made["paths"].items()} == {
        "/": {"get"},
        "/health-check": {"get"},
        "/openapi.json": {"get"},
        "/predictions": {"post"},
        "/predictions/{prediction_id}": {"put", "get", "delete"},
        "/predictions/{prediction_id}/cancel": {"post", "put"},
        "/shutdown": {"post"},
    }
    assert {"Input", "Output", "PredictionRequest", "PredictionResponse", "Status"} <= set(schemas)
    assert {"HTTPValidationError", "ValidationError"} <= set(schemas)
    for reference in _references(made):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        jsonschema.Draft4Validator.check_schema(schema)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        node = list(node.values())
    for member in node if isinstance(node, list) else ():
        yield from _references(member)
