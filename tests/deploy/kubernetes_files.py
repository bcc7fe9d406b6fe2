"""Reads deploy/kubernetes as Kubernetes does: what its containers run, and with which environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION = "kustomization.yaml"
_REFERENCE = re.compile(r"\$\((\w+)\)")


def files() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != KUSTOMIZATION)


def manifests() -> list[dict[str, Any]]:
    """Returns all objects of all files."""
    return [found for name in files() for found in yaml.safe_load_all((FOLDER / name).read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Returns the specifications of pods, by the name of what makes them."""
    makers = [each for each in manifests() if "template" in each["spec"]]
    return {maker["metadata"]["name"]: maker["spec"]["template"]["spec"] for maker in makers}


def containers() -> dict[str, dict[str, Any]]:
    return {container["name"]: container for pod in pods().values() for container in pod["containers"]}


def environment(container: Mapping[str, Any], secrets: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a container, with secrets by key and fields of the pod by path."""
    environ = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            environ[variable["name"]] = secrets[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            environ[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            environ[variable["name"]] = variable["value"]
    return environ


def arguments(container: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Returns what a container runs, with `$(NAME)` filled in."""
    return [_REFERENCE.sub(lambda match: environ[match[1]], word) for word in container["args"]]
