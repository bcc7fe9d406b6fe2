"""The endpoints of the prediction service for its OpenAPI document, and the components that every predictor shares."""

from __future__ import annotations

from typing import Any


def component(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _text(title: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "type": "string", **more}


_MOMENTS = {
    "created_at": _text("Created At", format="date-time"),
    "started_at": _text("Started At", format="date-time"),
    "completed_at": _text("Completed At", format="date-time"),
}

_REQUEST = {
    "title": "PredictionRequest",
    "type": "object",
    "properties": {
        "id": _text("Id", pattern="^[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}$", nullable=True),
        "input": component("Input"),
        "context": {
            "title": "Context",
            "type": "object",
            "additionalProperties": {"type": "string"},
            "nullable": True,
        },
        "webhook": _text("Webhook", format="uri", nullable=True),
        "webhook_events_filter": {
            "title": "Webhook Events Filter",
            "type": "array",
            "items": {"type": "string", "enum": ["start", "output", "logs", "completed"]},
            "nullable": True,
        },
    },
}

_RESPONSE = {
    "title": "PredictionResponse",
    "type": "object",
    "required": ["id", "status"],
    "properties": {
        "id": _text("Id"),
        "status": component("Status"),
        "input": component("Input"),
        "output": component("Output"),
        "error": _text("Error"),
        "logs": _text("Logs"),
        "metrics": {"title": "Metrics", "type": "object"},
        **_MOMENTS,
    },
}

ENVELOPES: dict[str, Any] = {
    "PredictionRequest": _REQUEST,
    "PredictionResponse": _RESPONSE,
    "Status": {
        "title": "Status",
        "description": "An enumeration.",
        "type": "string",
        "enum": ["starting", "processing", "succeeded", "canceled", "failed"],
    },
    "HTTPValidationError": {
        "title": "HTTPValidationError",
        "type": "object",
        "properties": {"detail": {"title": "Detail", "type": "array", "items": component("ValidationError")}},
    },
    "ValidationError": {
        "title": "ValidationError",
        "type": "object",
        "required": ["loc", "msg", "type"],
        "properties": {
            "loc": {
                "title": "Location",
                "type": "array",
                "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "msg": _text("Message"),
            "type": _text("Error Type"),
        },
    },
}


_ID = {"name": "prediction_id", "in": "path", "required": True, "schema": {"title": "Prediction Id", "type": "string"}}
_HEADERS = [
    {
        "name": "Prefer",
        "in": "header",
        "required": False,
        "description": "respond-async: answer at once with 202, and go on.",
        "schema": {"title": "Prefer", "type": "string"},
    },
    *(
        {"name": name, "in": "header", "required": False, "schema": {"title": name.title(), "type": "string"}}
        for name in ("traceparent", "tracestate")
    ),
]
_LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The stream begins behind this event.",
    "schema": {"title": "Last-Event-ID", "type": "string"},
}
_BODY = {"content": {"application/json": {"schema": component("PredictionRequest")}}}


def paths(is_streaming: bool) -> dict[str, Any]:
    """Returns the paths of the document. `is_streaming`: predictions can be followed as event streams."""
    put_operation = _create("PUT", is_streaming)
    put_operation["parameters"] = [_ID, *put_operation["parameters"]]
    answers = {"200": _json("The prediction", component("PredictionResponse")), "404": _error("No such prediction")}
    return {
        "/": {"get": _operation("Root", "root__get")},
        "/health-check": {"get": _operation("Healthcheck", "healthcheck_health_check_get")},
        "/openapi.json": {"get": _operation("Openapi", "openapi_openapi_json_get", **{"503": _error("Not set up")})},
        "/predictions": {"post": _create("POST", is_streaming)},
        "/predictions/{prediction_id}": {
            "put": put_operation,
            "get": {
                "summary": "Get",
                "description": "A prediction that runs, or ended a while ago",
                "operationId": "get_predictions__prediction_id__get",
                "parameters": [_ID],
                "responses": answers,
            },
            "delete": _cancel("delete_predictions__prediction_id__delete"),
        },
        "/predictions/{prediction_id}/cancel": {
            method: _cancel(f"cancel_predictions__prediction_id__cancel_{method}") for method in ("post", "put")
        },
        "/shutdown": {"post": _operation("Shutdown", "start_shutdown_shutdown_post")},
    }


def _create(method: str, is_streaming: bool) -> dict[str, Any]:
    success = _json("The prediction, ended", component("PredictionResponse"))
    responses = {
        "200": success,
        "202": _json("The prediction, under way", component("PredictionResponse")),
        "400": _error("The body is not JSON"),
        "406": _error("This predictor has no event streams"),
        "409": _error("No slot is free, or the id is in use"),
        "413": _error("The body is too large"),
        "415": _error("The body is not JSON by its type"),
        "422": _json("Validation Error", component("HTTPValidationError")),
        "503": _error("Not set up, or stopping"),
    }
    operation: dict[str, Any] = {
        "summary": "Predict" if method == "POST" else "Predict Idempotent",
        "description": "Run a single prediction on the model",
        "operationId": "predict_predictions_post" if method == "POST" else "predict_predictions__prediction_id__put",
        "parameters": [*_HEADERS, *([_LAST_EVENT] if is_streaming else [])],
        "requestBody": _BODY,
        "responses": responses,
    }
    if is_streaming:
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    if is_streaming and method == "POST":
        operation["x-cog-streaming"] = True
    return operation


def _cancel(name: str) -> dict[str, Any]:
    return {
        "summary": "Cancel",
        "operationId": name,
        "parameters": [_ID],
        "responses": {"200": _json("Will be canceled"), "404": _json("Does not run")},
    }


def _operation(summary: str, name: str, **errors: Any) -> dict[str, Any]:
    return {"summary": summary, "operationId": name, "responses": {"200": _json("Successful Response"), **errors}}


def _json(description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema or {}}}}


def _error(description: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"error": {"type": "string"}, "status": {"type": "string"}},
        "required": ["error"],
    }
    return _json(description, schema)
