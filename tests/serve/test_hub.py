"""A server whose model comes from a hub: it answers while it downloads, and serves what it got."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import APP, SERVE, Server, Servers
from tests.support import gguf
from tests.support.hub_server import HubServer, Repo, clean_environment, hub_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small model, with room behind them for a download of several pieces."""
    path = gguf.write_llama(tmp_path_factory.mktemp("model") / "m.gguf")
    return path.read_bytes() + bytes(24_000_000)


@pytest.fixture
def hub(model: bytes) -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_server() as server:
        server.repos["o/r"] = Repo({"tiny-Q8_0.gguf": model})
        yield server


def settings(hub: HubServer, home: Path, **more: Any) -> dict[str, Any]:
    return {**hub.environ(home), "ctx": 128, "slots": 2, "threads": 1, **more}


def text(server: Server, model: str) -> str:
    with server.client() as client:
        return client.completions.create(model=model, prompt="Hi", max_tokens=3, seed=1).choices[0].text


def test_a_server_tells_how_far_its_download_is_and_then_serves_the_model(
    start: Servers, hub: HubServer, tmp_path: Path
) -> None:
    gate = hub.repos["o/r"].gate = threading.Event()
    server = start.start(*SERVE, "-hf", "o/r:q8_0", wait_for="starting", **settings(hub, tmp_path, model=""))
    words = re.compile(r"the model is being downloaded: 1\d of 24 MB \(4\d %\)")
    eventually(lambda: words.fullmatch(server.get("/health")[1]["error"]["message"]))

    assert server.get("/health")[0] == 503
    (listed,) = server.get("/v1/models")[1]["data"]
    assert listed["status"]["value"] == "downloading"
    assert 0 < listed["status"]["progress"]["bytes"] < listed["status"]["progress"]["total"]
    assert server.get("/health/live")[0] == 200
    gate.set()
    server.wait_until("ok")

    assert [each["id"] for each in server.get("/v1/models")[1]["data"]] == ["o/r:q8_0"]
    assert text(server, "o/r:q8_0") is not None
    assert "model o/r:q8_0: 1 files of commit" in server.log


def test_another_model_answers_meanwhile_and_the_list_tells_how_far_it_is(
    start: Servers, hub: HubServer, tmp_path: Path
) -> None:
    gate = hub.repos["o/r"].gate = threading.Event()
    model = "first=synthetic:?tokens_per_s=0,tiny=hf:o/r?ctx=64"
    server = start.start(*APP, **settings(hub, tmp_path, model=model))
    with server.connect() as connection:
        assert connection.post({"model": "tiny"}, "/models/load").status == 200

    def standing() -> Any:
        return server.get("/v1/models/tiny")[1]["status"]

    eventually(lambda: standing().get("progress", {}).get("bytes", 0) > 0)
    assert standing()["value"] == "downloading"
    assert standing()["progress"]["total"] == len(hub.repos["o/r"].files["tiny-Q8_0.gguf"])
    assert text(server, "first")
    gate.set()

    eventually(lambda: standing() == {"value": "loaded"})
    assert text(server, "tiny") is not None


def test_a_server_without_the_hub_takes_what_it_has_and_says_so(start: Servers, hub: HubServer, tmp_path: Path) -> None:
    environment = clean_environment() | hub.environ(tmp_path)
    subprocess.run(
        [sys.executable, "-m", "corosrv.models.hub", "hf:o/r"], env=environment, check=True, stdin=subprocess.PIPE
    )
    hub.is_down = True

    server = start.start(**settings(hub, tmp_path, model="hf:o/r"))

    assert text(server, "o/r") is not None
    assert "the files in the cache are used, for o/r could not be had from" in server.log


def test_a_model_that_the_hub_does_not_have_fails_with_the_reason(
    start: Servers, hub: HubServer, tmp_path: Path
) -> None:
    server = start.start(wait_for="failed", unloadable_s=-1, **settings(hub, tmp_path, model="hf:o/none"))

    assert "has no repository o/none" in server.get("/health")[1]["error"]["message"]
    assert not list(tmp_path.glob("hub/*"))
