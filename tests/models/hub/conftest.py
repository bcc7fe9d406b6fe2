"""A hub of the tests' own, and a cache that each test has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import HubServer, hub_server


@pytest.fixture(scope="module")
def _server() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


@pytest.fixture
def hub(_server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub that the library asks in this process."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hub is not installed")
    _server.repos.clear()
    _server.requests.clear()
    _server.is_down = False
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    template = _server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", _server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    return _server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Returns the folder of downloads."""
    return tmp_path / "hub"
