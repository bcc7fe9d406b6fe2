"""The components of the OpenAPI document that are the same for every predictor."""

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
