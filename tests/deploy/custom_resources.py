"""Schemas of objects that Kubernetes itself does not know, as far as deploy/kubernetes uses them.

Written after the CustomResourceDefinitions of KEDA 2.18, prometheus-operator 0.86, gateway-api 1.4 and
gateway-api-inference-extension 1.1: a field that is not here is refused, although the real schemas have more of them.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}


def fields(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    """Makes the schema of an object that has these fields and no others; `required`: names with spaces between."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def each(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


SELECTOR = fields("matchLabels", matchLabels={"type": "object", "additionalProperties": TEXT, "minProperties": 1})
REFERENCE = fields("name", group={"type": "string"}, kind=TEXT, name=TEXT)
POLICY = fields("type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=COUNT, periodSeconds=COUNT)
BEHAVIOR = fields(scaleDown=fields(stabilizationWindowSeconds=COUNT, policies=each(POLICY)))

SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        "scaleTargetRef triggers",
        scaleTargetRef=fields("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        triggers=each(
            fields(
                "type metadata",
                type={"const": "prometheus"},
                # KEDA takes texts only, also for numbers.
                metadata=fields("serverAddress query threshold", serverAddress=TEXT, query=TEXT, threshold=TEXT),
            )
        ),
        advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=BEHAVIOR)),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): fields(
        "selector podMetricsEndpoints",
        selector=SELECTOR,
        podMetricsEndpoints=each(
            fields(
                port=TEXT,
                path=TEXT,
                interval={"type": "string", "pattern": r"^\d+(ms|s|m)$"},
                authorization=fields("credentials", credentials=fields("key", name=TEXT, key=TEXT)),
            )
        ),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): fields(
        "selector targetPorts endpointPickerRef",
        selector=SELECTOR,
        targetPorts=each(fields("number", number=PORT)),
        endpointPickerRef=fields(
            "name", name=TEXT, port=fields("number", number=PORT), failureMode={"enum": ["FailOpen", "FailClose"]}
        ),
    ),
    ("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"): fields(
        "poolRef", priority={"type": "integer"}, poolRef=REFERENCE
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): fields(
        "parentRefs rules",
        parentRefs=each(REFERENCE),
        rules=each(
            fields(
                "backendRefs",
                matches=each(
                    fields(path=fields(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=TEXT))
                ),
                backendRefs=each(REFERENCE),
                timeouts=fields(request={"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
            )
        ),
    ),
}

METADATA = fields("name", name=TEXT, labels={"type": "object", "additionalProperties": TEXT})


def schema_of(found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the schema of an object of these kinds; None for those of Kubernetes itself."""
    spec = SPECS.get((found["apiVersion"], found["kind"]))
    return spec and fields("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=METADATA, spec=spec)
