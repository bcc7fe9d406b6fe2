"""deploy/compose.yaml: what it says exists, and what it starts answers. Its commands run here without containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from compose_spec import PyCompose

from corosrv.contracts import settings
from corosrv.gunicorn_app import options
from tests.deploy.compose_file import FILE, document, seconds, services
from tests.deploy.kubernetes_files import options_of
from tests.serve.server import Server, Servers, servers
from tests.serve.wire import chat, events, text_of
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

SERVICES = services()
SERVERS = [name for name, service in SERVICES.items() if service["image"] == "corosrv"]
FRONTS = [name for name in SERVERS if name.startswith("front")]
ENGINES = [name for name in SERVERS if name.startswith("engine")]


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("compose"), tmp_path_factory.mktemp("cache")) as started:
        yield started


def begin(started: Servers, name: str, places: dict[str, str], **changes: Any) -> Server:
    """Starts a service's command with its environment; `places`: where other services are here."""
    service = SERVICES[name]
    words = service["command"]
    assert words[words.index("--port") + 1] == "8080"
    words = [places.get(word, word) for word in words]
    words[words.index("--port") + 1] = "0"
    words[words.index("--host") + 1] = "127.0.0.1"
    return started.start(*words, **(service["environment"] | changes))


def environment_with(**variables: str) -> dict[str, dict[str, str]]:
    """Returns each service's environment where these variables are set when compose is started."""
    return {name: service.get("environment", {}) for name, service in services(variables).items()}


@pytest.fixture(scope="module")
def engines(compose: Servers) -> dict[str, str]:
    """Starts the engines, with a model that needs no file; returns where each is, by how the fronts name it."""
    places = {}
    for name in ENGINES:
        engine = begin(compose, name, {}, COROSRV_MODEL="small=synthetic:?tokens_per_s=200")
        places[f"http://{name}:8080?concurrency=8"] = f"http://127.0.0.1:{engine.port}?concurrency=8"
    return places


@pytest.fixture(scope="module")
def front(compose: Servers, engines: dict[str, str]) -> Server:
    """Starts the front as it is without a profile. It has no model, so that of these tests' servers is left out."""
    return begin(compose, "front", engines, COROSRV_MODEL="")


def test_the_file_is_what_compose_reads() -> None:
    compose = PyCompose.from_yaml(yaml.safe_dump(document()))

    assert compose.services is not None
    assert set(compose.services) == set(SERVICES)


def test_what_compose_does_not_know_is_found() -> None:
    wrong = yaml.safe_dump(document()).replace("stop_grace_period", "stop_grace_periods")

    with pytest.raises(ValueError, match="stop_grace_periods"):
        PyCompose.from_yaml(wrong)


def test_an_answer_comes_through_the_front(front: Server) -> None:
    with front.connect() as connection:
        answer = connection.post(chat(model="small", stream=True, max_tokens=4), "/v1/chat/completions")

    assert answer.status == 200
    assert text_of(events(answer.body))


def test_with_the_profile_fronts_share_the_redis_that_is_started(compose: Servers, engines: dict[str, str]) -> None:
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"front-2", "redis"}
    with redis_server(**options_of(SERVICES["redis"]["command"])) as redis:
        assert environment_with(COROSRV_REDIS_URL="redis://redis:6379/0")["front-2"]["COROSRV_REDIS_URL"]

        front = begin(compose, "front-2", engines, COROSRV_MODEL="", COROSRV_REDIS_URL=redis.url)
        eventually(lambda: f"Redis at 127.0.0.1:{redis.port}" in front.log, what="a word about Redis")
        with front.connect() as connection:
            answer = connection.post(chat(model="small", max_tokens=2))

        assert answer.status == 200, answer.body
        assert "appendonly" not in front.log
        front.stop()


@pytest.mark.parametrize("name", SERVERS)
def test_the_health_check_asks_what_is_there(name: str, front: Server) -> None:
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    (path,) = re.findall(r"http://127\.0\.0\.1:8080(/\w+)", command[-1])

    assert kind == "CMD"
    assert front.get(path) == (200, {"status": "ok", "state": "ready"})


@pytest.mark.parametrize("name", SERVERS)
def test_answers_may_end_before_a_container_is_killed(name: str) -> None:
    service = SERVICES[name]
    chosen = settings.load({}, service["environment"] | {"COROSRV_MODEL": "synthetic:?tokens_per_s=1"})

    assert seconds(service["stop_grace_period"]) > options(chosen)["graceful_timeout"]


@pytest.mark.parametrize("name", SERVERS)
def test_every_variable_is_a_setting(name: str) -> None:
    assert settings.unknown_variables(SERVICES[name]["environment"]) == []


def test_the_front_is_stopped_before_what_it_forwards_to() -> None:
    assert {name: set(SERVICES[name]["depends_on"]) for name in FRONTS} == {name: set(ENGINES) for name in FRONTS}


def test_only_fronts_are_published_and_to_this_machine_only() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert ports == {"front": ["127.0.0.1:8080:8080"], "front-2": ["127.0.0.1:8081:8080"]}


def test_all_services_are_built_from_the_container_file() -> None:
    for name in SERVERS:
        build = SERVICES[name]["build"]

        assert (FILE.parent / build["context"] / build["dockerfile"]).samefile(Path("deploy/Dockerfile").absolute())
