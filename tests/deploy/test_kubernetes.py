"""deploy/kubernetes: its objects are valid, what they name exists, and their containers' commands work together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from corosrv.contracts import settings
from corosrv.gunicorn_app import options
from tests.deploy.custom_resources import schema_of
from tests.deploy.kubernetes_files import (
    FOLDER,
    KUSTOMIZATION,
    arguments,
    containers,
    engine_on_gpus,
    environment,
    files,
    makers,
    manifest,
    manifests,
    options_of,
    pods,
)
from tests.serve.server import BIN, REPOSITORY, START_SECONDS, Server, Servers, servers
from tests.serve.wire import CHAT, chat
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

VERSIONS = ("1.29", "1.37")
OPTIONAL = {"autoscaling.yaml", "gateway.yaml", "monitoring.yaml", "vllm.yaml"}
SECRETS = {
    "api-keys": "first,second",
    "engine-key": "engine-secret",
    "management-token": "management-secret",
    "redis-password": "redis-secret",
    "redis-conf": "requirepass redis-secret",
}
CONTAINERS = containers()
OURS = [name for name in CONTAINERS if CONTAINERS[name]["image"] == "corosrv"]
SERVERS = ["front", "engine"]


def name_of(found: dict[str, Any]) -> str:
    return f"{found['kind']}-{found['metadata']['name']}"


# What is written.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", manifests(), ids=name_of)
def test_an_object_is_valid(found: dict[str, Any], version: str) -> None:
    if (schema := schema_of(found)) is not None:
        jsonschema.validate(found, schema)
    else:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("found", [each for each in manifests() if schema_of(each)], ids=name_of)
def test_a_wrong_custom_resource_is_found(found: dict[str, Any]) -> None:
    wrong = found | {"spec": found["spec"] | {"sepc": 1}}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema_of(found) or {})


def test_a_wrong_object_is_found() -> None:
    wrong = manifest("Deployment", "front")
    wrong["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_kustomization_names_every_file_that_is_not_optional() -> None:
    kustomization = yaml.safe_load((FOLDER / KUSTOMIZATION).read_text())

    assert set(kustomization["resources"]) == set(files()) - OPTIONAL
    assert {image["name"] for image in kustomization["images"]} == {CONTAINERS[name]["image"] for name in SERVERS}


@pytest.mark.parametrize("found", [each for each in manifests() if each["kind"] in ("Service", "PodDisruptionBudget")],
                         ids=name_of)  # fmt: skip
def test_a_selector_finds_pods(found: dict[str, Any]) -> None:
    selector = found["spec"]["selector"]
    labels = [maker["spec"]["template"]["metadata"]["labels"] for maker in makers()]

    assert any((selector.get("matchLabels") or selector).items() <= each.items() for each in labels)


def test_services_lead_to_ports_of_containers() -> None:
    for service in (each for each in manifests() if each["kind"] == "Service"):
        pod = pods()[service["spec"]["selector"]["app"]]
        ports = {port["name"] for container in pod["containers"] for port in container.get("ports", ())}

        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_may_do_nothing_but_its_work(name: str) -> None:
    (pod,) = [each for each in pods().values() if name in [container["name"] for container in each["containers"]]]
    context = CONTAINERS[name]["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert CONTAINERS[name]["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_mounted_is_a_volume(name: str) -> None:
    (pod,) = [each for each in pods().values() if name in [container["name"] for container in each["containers"]]]
    claims = [claim for maker in makers() for claim in maker["spec"].get("volumeClaimTemplates", ())]
    volumes = {volume["name"] for volume in pod.get("volumes", ())} | {claim["metadata"]["name"] for claim in claims}

    assert {mount["name"] for mount in CONTAINERS[name]["volumeMounts"]} <= volumes


@pytest.mark.parametrize("name", SERVERS)
def test_ports_are_those_of_the_command(name: str) -> None:
    given = {word for word in CONTAINERS[name]["args"] if re.match(r"--(mgmt-)?port=", word)}
    ports = {port["name"]: port["containerPort"] for port in CONTAINERS[name]["ports"]}

    expected = {f"--port={ports['http']}"} | (
        {f"--mgmt-port={ports['management']}"} if "management" in ports else set()
    )
    assert given == expected


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name: str) -> None:
    environ = environment(CONTAINERS[name], SECRETS, {"metadata.name": "engine-0"})

    assert settings.unknown_variables(environ) == []


@pytest.mark.parametrize("name", SERVERS)
def test_answers_may_end_before_a_pod_is_killed(name: str) -> None:
    pod, container = pods()[name], CONTAINERS[name]
    environ = environment(container, SECRETS, {}) | {"COROSRV_MODEL": "synthetic:?tokens_per_s=1"}
    command, waits = container["lifecycle"]["preStop"]["exec"]["command"]

    assert command == "sleep"
    ends = int(waits) + options(settings.load({}, environ))["graceful_timeout"]
    assert pod["terminationGracePeriodSeconds"] >= ends


# What it starts.


def here(words: list[str], places: dict[str, str]) -> list[str]:
    """Returns a command as it is run on this machine: on free ports of its own address."""
    for before, after in places.items():
        words = [word.replace(before, after) for word in words]
    return [re.sub(r"^--(mgmt-)?port=\d+$", r"--\1port=0", word).replace("=0.0.0.0", "=127.0.0.1") for word in words]


class Cluster:
    """The containers of one front and one engine, as processes."""

    def __init__(self, started: Servers, folder: Path) -> None:
        (folder / "management-token").write_text(SECRETS["management-token"])
        self.places = {"/secrets/": f"{folder}/"}
        self.front = self.start(started, "front", COROSRV_MODEL="", COROSRV_RUN_DIR=folder / "run")
        self.engine = self.start(started, "engine", COROSRV_MODEL="small=synthetic:?tokens_per_s=200")
        port = re.findall(r"management on http://127\.0\.0\.1:(\d+)", self.front.log)[0]
        self.places["http://front-management:8079"] = f"http://127.0.0.1:{port}"
        self.places["http://engine-0.engine:8080"] = f"http://127.0.0.1:{self.engine.port}"

    def start(self, started: Servers, name: str, **changes: Any) -> Server:
        environ = environment(CONTAINERS[name], SECRETS, {})
        for variable in [variable for variable in environ if "REDIS" in variable]:  # tried by another test
            del environ[variable]
        return started.start(*here(arguments(CONTAINERS[name], environ), self.places), **(environ | changes))

    @contextmanager
    def joined(self) -> Iterator[subprocess.Popen[bytes]]:
        """Runs the container that adds the engine to the front."""
        environ = environment(CONTAINERS["join"], SECRETS, {"metadata.name": "engine-0"})
        program, *words = here(arguments(CONTAINERS["join"], environ), self.places)
        process = subprocess.Popen([str(BIN / program), *words], env=os.environ | environ, cwd=REPOSITORY)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def models(self) -> list[str]:
        with self.front.connect() as connection:
            listing = connection.ask("GET", "/v1/models", headers={"Authorization": "Bearer second"})
        return [model["id"] for model in listing.json["data"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kubernetes")
    with servers(folder, tmp_path_factory.mktemp("cache")) as started:
        yield Cluster(started, folder)


@pytest.mark.parametrize("name", SERVERS)
def test_probes_ask_what_is_there(name: str, cluster: Cluster) -> None:
    server = getattr(cluster, name)
    container = CONTAINERS[name]

    paths = {kind: probe["httpGet"]["path"] for kind, probe in container.items() if kind.endswith("Probe")}
    assert paths["livenessProbe"] == "/health/live"
    assert paths["readinessProbe"] == paths.get("startupProbe", "/health") == "/health"
    assert {server.get(path)[0] for path in paths.values()} == {200}


def test_an_engine_joins_the_front_and_leaves_it_again(cluster: Cluster) -> None:
    assert cluster.models() == []

    with cluster.joined() as process:
        eventually(lambda: cluster.models() == ["small"], START_SECONDS, "the engine's model")
        with cluster.front.connect() as connection:
            refused = connection.post(chat(model="small", max_tokens=2), CHAT)
            answer = connection.post(chat(model="small", max_tokens=2), CHAT, {"Authorization": "Bearer first"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0

    assert refused.status == 401
    assert answer.status == 200, answer.body
    eventually(lambda: cluster.models() == [], what="no model")


def test_the_front_shares_permits_through_redis_as_that_is_started(tmp_path: Path) -> None:
    environ = environment(CONTAINERS["redis"], SECRETS, {})
    program, file, *words = arguments(CONTAINERS["redis"], environ)
    assert file == "/secrets/redis.conf"
    word, password = SECRETS["redis-conf"].split()
    chosen = options_of([program, *words]) | {word: password}
    with redis_server(**chosen) as redis, servers(tmp_path, tmp_path / "cache") as started:
        for name in ("management-token", "redis-password"):
            (tmp_path / name).write_text(SECRETS[name])
        variables = environment(CONTAINERS["front"], SECRETS, {})
        variables["COROSRV_REDIS_URL"] = variables["COROSRV_REDIS_URL"].replace("redis:6379", f"127.0.0.1:{redis.port}")
        variables["COROSRV_REDIS_PASSWORD_FILE"] = str(tmp_path / Path(variables["COROSRV_REDIS_PASSWORD_FILE"]).name)

        front = started.start(
            *here(CONTAINERS["front"]["args"], {"/secrets/": f"{tmp_path}/"}),
            **variables,
            COROSRV_MODEL="",
            COROSRV_RUN_DIR=tmp_path / "run",
        )

        eventually(lambda: f"Redis at 127.0.0.1:{redis.port}" in front.log, what="a word about Redis")
        assert "answers" in front.log
        assert "appendonly" not in front.log
        assert "noeviction" not in front.log


def metrics_of(server: Server, key: str) -> str:
    with server.connect() as connection:
        return connection.ask("GET", "/metrics", headers={"Authorization": f"Bearer {key}"}).body.decode()


def test_engines_are_scaled_by_what_runs_and_what_waits_at_fronts(cluster: Cluster) -> None:
    (trigger,) = manifest("ScaledObject", "engine")["spec"]["triggers"]
    names = re.findall(r"corosrv_\w+", trigger["metadata"]["query"].replace('"corosrv"', ""))
    text = metrics_of(cluster.front, "first")

    assert set(names) == {"corosrv_upstream_in_flight", "corosrv_upstreams_queue_depth"}
    for name in names:
        assert f"# TYPE {name} gauge\n" in text
    slots = int(environment(CONTAINERS["engine"], SECRETS, {})["COROSRV_SLOTS"])
    assert slots / 2 < int(trigger["metadata"]["threshold"]) < slots


def test_the_gateways_picker_finds_its_gauges_at_an_engine(cluster: Cluster) -> None:
    text = metrics_of(cluster.engine, SECRETS["engine-key"])

    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f'vllm:{name}{{model_name="small"}} 0.0\n' in text
    pool = manifest("InferencePool", "engine")["spec"]
    assert [port["number"] for port in pool["targetPorts"]] == [CONTAINERS["engine"]["ports"][0]["containerPort"]]
    assert pool["selector"]["matchLabels"] == {"app": "engine"}


def test_one_front_is_left_while_a_node_is_drained() -> None:
    front, budget = manifest("Deployment", "front"), manifest("PodDisruptionBudget", "front")
    joined = int(next(word for word in CONTAINERS["join"]["args"] if "--concurrency" in word).partition("=")[2])
    slots = int(environment(CONTAINERS["engine"], SECRETS, {})["COROSRV_SLOTS"])

    assert front["spec"]["replicas"] - budget["spec"]["maxUnavailable"] >= 1
    assert joined == slots
    for name in SERVERS:
        (constraint,) = pods()[name]["topologySpreadConstraints"]
        assert constraint["labelSelector"]["matchLabels"] == {"app": name}


def test_images_are_pinned() -> None:
    kustomization = yaml.safe_load((FOLDER / KUSTOMIZATION).read_text())
    tags = [image["newTag"] for image in kustomization["images"]]
    tags += [container["image"].partition(":")[2] for name, container in CONTAINERS.items() if name not in OURS]

    assert all(tag and tag != "latest" for tag in tags)


def test_the_gpu_component_changes_what_is_there() -> None:
    engine = engine_on_gpus()

    kubernetes_validate.validate(engine, VERSIONS[-1], strict=True)
    environ = environment(engine["spec"]["template"]["spec"]["containers"][0], SECRETS, {})
    assert settings.unknown_variables(environ) == []
