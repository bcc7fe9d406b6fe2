"""deploy/helm/corosrv: Helm makes of its values what deploy/kubernetes has, and the objects are valid."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from corosrv.contracts import settings
from tests.deploy.custom_resources import schema_of
from tests.deploy.kubernetes_files import FOLDER, KUSTOMIZATION, engine_on_gpus, environment, manifests

pytest.importorskip("helm_python", reason="there is no wheel of Helm for this machine")

CHART = FOLDER.parent / "helm" / "corosrv"
# In a process of its own: Helm brings Go's threads and handlers of signals.
RENDER = """
import json, sys
import helm_python as helm
with helm.Chart.load(sys.argv[1]) as chart:
    rendered = chart.render(json.loads(sys.argv[2]), name="corosrv", namespace="corosrv")
    json.dump({"files": rendered, "lint": helm.lint(sys.argv[1])}, sys.stdout)
"""
ALL = {name: {"enabled": True} for name in ("autoscaling", "monitoring", "gateway")}
KUSTOMIZED = yaml.safe_load((FOLDER / KUSTOMIZATION).read_text())
EVERY_WAY: list[dict[str, Any]] = [
    {},
    ALL,
    {"gpu": {"enabled": True, "count": 2}},
    {"fronts": {"replicas": 3}, "redis": {"url": "rediss://elsewhere:6380"}, "models": {"claim": "mine"}},
    {"engines": {"slots": 1, "env": [{"name": "COROSRV_CTX", "value": "8192"}]}, **ALL},
]

Objects = dict[tuple[str, str], dict[str, Any]]


@cache
def _helm(values: str) -> dict[str, Any]:
    made = subprocess.run([sys.executable, "-c", RENDER, CHART, values], capture_output=True, timeout=60, check=True)
    answer: dict[str, Any] = json.loads(made.stdout)
    return answer


def rendered(values: dict[str, Any]) -> Objects:
    files = _helm(json.dumps(values))["files"].values()
    return by_name([found for text in files for found in yaml.safe_load_all(text) if found])


def by_name(objects: list[dict[str, Any]]) -> Objects:
    named = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(named) == len(objects)
    return named


def with_images(objects: Objects) -> Objects:
    """Returns manifests with the images that the kustomization gives them."""
    text = json.dumps(list(objects.values()))
    for image in KUSTOMIZED["images"]:
        text = text.replace(f'"image": "{image["name"]}"', f'"image": "{image["newName"]}:{image["newTag"]}"')
    return by_name(json.loads(text))


def container(objects: Objects, name: str = "engine") -> dict[str, Any]:
    (found,) = [
        each
        for made in objects.values()
        if "template" in made["spec"]
        for each in made["spec"]["template"]["spec"]["containers"]
        if each["name"] == name
    ]
    return found


def test_by_itself_the_chart_is_what_is_applied_without_helm() -> None:
    resources = [found for name in KUSTOMIZED["resources"] for found in yaml.safe_load_all((FOLDER / name).read_text())]

    assert rendered({}) == with_images(by_name(resources))


def test_what_can_be_switched_on_is_what_is_optional_without_helm() -> None:
    made, plain = rendered(ALL), with_images(by_name(manifests()))
    theirs = {key: found for key, found in plain.items() if key in made and key != ("StatefulSet", "engine")}

    assert {key: found for key, found in made.items() if key in theirs} == theirs
    assert made.keys() == theirs.keys() | {("StatefulSet", "engine")}
    assert {name.partition("-")[0] for _, name in plain.keys() - made.keys()} == {"vllm"}  # engines of others
    assert "replicas" not in made["StatefulSet", "engine"]["spec"]  # which KEDA sets


def test_on_gpus_engines_are_what_the_component_makes_of_them() -> None:
    made = rendered({"gpu": {"enabled": True}})

    assert container(made) == container(with_images({("StatefulSet", "engine"): engine_on_gpus()}))


@pytest.mark.parametrize("values", EVERY_WAY)
def test_each_object_is_valid_and_each_variable_a_setting(values: dict[str, Any]) -> None:
    made = rendered(values)

    for found in made.values():
        if (schema := schema_of(found)) is not None:
            jsonschema.validate(found, schema)
        else:
            kubernetes_validate.validate(found, "1.37", strict=True)
    for name in ("engine", "front"):
        secrets = dict.fromkeys(("api-keys", "engine-key", "management-token", "redis-password"), "secret")
        environ = environment(container(made, name), secrets, {})
        assert settings.unknown_variables(environ) == []
        settings.load({}, environ | {"COROSRV_REDIS_PASSWORD_FILE": ""})


def test_engines_give_all_fronts_together_their_slots_and_are_scaled_by_them() -> None:
    made = rendered({"fronts": {"replicas": 3}, "engines": {"slots": 16}, "autoscaling": {"enabled": True}})

    assert "--concurrency=16" in container(made, "join")["args"]
    (trigger,) = made["ScaledObject", "engine"]["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "12"


def test_a_redis_and_a_claim_of_ones_own_take_the_place_of_the_charts() -> None:
    made = rendered({"redis": {"url": "rediss://elsewhere:6380"}, "models": {"claim": "mine"}})

    assert not {key for key in made if "redis" in key[1] or key[0] == "PersistentVolumeClaim"}
    assert environment(container(made, "front"), dict.fromkeys(("api-keys", "engine-key"), ""), {})[
        "COROSRV_REDIS_URL"
    ] == ("rediss://elsewhere:6380")
    volumes = made["StatefulSet", "engine"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}} in volumes


def test_engines_behind_a_gateway_believe_it_and_know_its_objectives() -> None:
    values = {"gateway": {"enabled": True, "objectives": {"background": -10, "premium": 5}}}
    made = rendered(values)
    server = settings.load({}, environment(container(made), {"engine-key": "secret"}, {})).server

    assert (server.gateway_networks, server.objective_priorities) == (("*",), {"background": -10, "premium": 5})
    objectives = [found["spec"] for (kind, _), found in made.items() if kind == "InferenceObjective"]
    assert [each["priority"] for each in objectives] == [-10, 5]


def test_helm_finds_nothing_wrong() -> None:
    found = _helm("{}")["lint"]

    assert found["errors"] == []
    assert {message["error"] for message in found["messages"]} == {"icon is recommended"}
