"""The example of a predictor in a container, run as the container runs it; nothing here needs one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.serve.server import Server, servers

JSON = {"Content-Type": "application/json"}
FOLDER = Path(__file__).parents[2] / "deploy" / "predictor"


@pytest.fixture(scope="module")
def command() -> list[str]:
    """What the container runs."""
    (found,) = re.findall(r"^CMD (\[.*\])$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    return list(json.loads(found))


@pytest.fixture(scope="module")
def server(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _, *arguments = command
    here = {"predict.py:Predictor": f"{FOLDER}/predict.py:Predictor", "0.0.0.0": "127.0.0.1", "5000": "0"}
    with servers(tmp_path_factory.mktemp("deploy"), tmp_path_factory.mktemp("cache")) as started:
        yield started.start("corosrv", *(here.get(word, word) for word in arguments), model="")


def test_compose_builds_the_container_and_lets_it_end(command: list[str]) -> None:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["predictor"]
    build, port = service["build"], command[command.index("--port") + 1]

    assert (FOLDER / build["context"] / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace >= int(service["environment"]["COROSRV_DRAIN_TIMEOUT"]) + 5


def test_the_container_is_well_once_it_is_set_up(server: Server) -> None:
    assert server.get("/health") == (200, {"status": "ok", "state": "ready"})
    assert server.get("/health-check")[1]["status"] == "READY"


def test_it_greets(server: Server) -> None:
    with server.connect() as connection:
        answer = connection.post({"input": {"name": "Ada", "times": 2}}, "/predictions", JSON).json

    assert (answer["status"], answer["output"]) == ("succeeded", ["Hello, Ada! ", "Hello, Ada! "])
    assert answer["logs"] == "greeting 1 of 2\ngreeting 2 of 2\n"


def test_it_greets_one_by_one(server: Server) -> None:
    with server.connect() as connection:
        body = {"input": {"name": "Ada", "times": 3}}
        answer = connection.post(body, "/predictions", JSON | {"Accept": "text/event-stream"})

    kinds = re.findall(rb"^event: (\w+)$", answer.body, re.MULTILINE)
    assert kinds.count(b"output") == 3
    assert kinds[-1] == b"completed"
