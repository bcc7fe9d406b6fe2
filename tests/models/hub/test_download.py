"""The process that downloads for a server: what it says, and what its end leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from corosrv.base.errors import HubError
from corosrv.contracts.settings import HubSettings, ModelSettings
from corosrv.models.hub.download import HubDownload
from tests.support.hub_server import TOKEN, HubServer, Repo, clean_environment, hub_server, sha256
from tests.support.waiting import wait_until

MODEL = bytes(range(256)) * 120_000  # three of the pieces that the library reads at once


@pytest.fixture(scope="module")
def _server() -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with hub_server() as server:
        yield server


@pytest.fixture
def hub(_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    _server.repos.clear()
    _server.requests.clear()
    monkeypatch.setattr("os.environ", clean_environment() | _server.environ(tmp_path))
    return _server


def download(hub: HubSettings | None = None, model: str = "hf:o/r", **options: object) -> HubDownload:
    return HubDownload(ModelSettings(model=model, **options), hub or HubSettings())  # type: ignore[arg-type]


def test_a_killed_download_leaves_a_part_with_which_the_next_goes_on(hub: HubServer, tmp_path: Path) -> None:
    gate = threading.Event()
    repo = hub.repos["o/r"] = Repo({"m.gguf": MODEL}, gate=gate)
    first = download()
    running = gevent.spawn(first.run)
    wait_until(lambda: first.bytes > 0)
    assert f"{first.bytes / 1e6:.0f} of 31 MB" in first.words

    first.cancel()
    with pytest.raises(HubError, match="the download was stopped; the next one goes on where it was"):
        running.get(timeout=30)
    (partial,) = tmp_path.glob("hub/*/blobs/*")
    assert (partial.name, partial.stat().st_size) == (f"{sha256(MODEL)}.incomplete", first.bytes)
    gate.set()
    repo.gate = None
    settings = download().run()

    assert Path(settings.model).read_bytes() == MODEL
    assert hub.ranges()[-1] == f"bytes={first.bytes}-"
    assert not partial.exists()


def test_the_files_stand_in_the_settings_in_place_of_the_name(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": b"model", "mmproj-F16.gguf": b"projector"})

    settings = download(slots=3).run()
    without = download(mmproj_auto=False).run()

    assert (Path(settings.model).read_bytes(), Path(settings.mmproj).read_bytes()) == (b"model", b"projector")
    assert (settings.names, settings.slots, settings.is_hub) == (("o/r",), 3, False)
    assert without.mmproj == ""


def test_the_token_of_the_settings_is_used(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": b"model"}, needs_token=True)
    with pytest.raises(HubError, match="needs a token which may read it"):
        download().run()

    assert download(HubSettings(hf_token=TOKEN)).run().model.endswith("/m.gguf")


def test_an_offline_server_asks_nobody(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": b"model"})
    online = download().run()
    hub.requests.clear()

    assert download(HubSettings(offline=True)).run() == online
    assert hub.requests == []
    with pytest.raises(HubError, match="COROSRV_OFFLINE is set: unset it"):
        download(HubSettings(offline=True), model="hf:o/new").run()
