"""deploy/compose.yaml: what it says exists, and what it starts answers. Its commands run here without containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from compose_spec import PyCompose

from corosrv import settings
from corosrv.gunicorn_app import options
from tests.deploy.compose_file import FILE, document, seconds, services
from tests.serve.server import Server, Servers, servers
from tests.serve.wire import chat, events, text_of

SERVICES = services()
CORES = [name for name, service in SERVICES.items() if service["image"] == "corosrv"]


@pytest.fixture(scope="module")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
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


@pytest.fixture(scope="module")
def front(_started: Servers) -> Server:
    """Starts all that the file starts without a profile; the engines with a model that needs no file."""
    places = {}
    for name in CORES:
        if name != "front":
            engine = begin(_started, name, {}, COROSRV_MODEL="small=synthetic:?tokens_per_s=200")
            places[f"http://{name}:8080?concurrency=8"] = f"http://127.0.0.1:{engine.port}?concurrency=8"
    assert set(places) <= set(SERVICES["front"]["command"])
    # The front has no model: the one of these tests' servers is left out.
    return begin(_started, "front", places, COROSRV_MODEL="", COROSRV_RUN_DIR="")


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


@pytest.mark.parametrize("name", CORES)
def test_the_health_check_asks_what_is_there(name: str, front: Server) -> None:
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    (path,) = re.findall(r"http://127\.0\.0\.1:8080(/\w+)", command[-1])

    assert kind == "CMD"
    assert front.get(path) == (200, {"status": "ok", "state": "ready"})


@pytest.mark.parametrize("name", CORES)
def test_answers_may_end_before_a_container_is_killed(name: str) -> None:
    service = SERVICES[name]
    chosen = settings.load({}, service["environment"] | {"COROSRV_MODEL": "synthetic:?tokens_per_s=1"})

    assert seconds(service["stop_grace_period"]) > options(chosen)["graceful_timeout"]


@pytest.mark.parametrize("name", CORES)
def test_every_variable_is_a_setting(name: str) -> None:
    assert settings.unknown_variables(SERVICES[name]["environment"]) == []


def test_the_front_is_stopped_before_what_it_forwards_to() -> None:
    assert set(SERVICES["front"]["depends_on"]) == set(CORES) - {"front"}


def test_only_the_front_is_published_and_to_this_machine_only() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert ports == {"front": ["127.0.0.1:8080:8080"]}


def test_all_services_are_built_from_the_container_file() -> None:
    for name in CORES:
        build = SERVICES[name]["build"]

        assert (FILE.parent / build["context"] / build["dockerfile"]).samefile(Path("deploy/Dockerfile").absolute())
