"""Applications that cannot be served: the server says why, and ends where nothing else is left to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.server import REPOSITORY, SERVE, Server, Servers
from tests.support.waiting import eventually

WITHOUT_GRPCIO = """
import sys

class NoGrpcio:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "grpc":
            raise ModuleNotFoundError("No module named 'grpc'")

sys.meta_path.insert(0, NoGrpcio)
"""
FAILS = """
raise RuntimeError("no weights in /secret/path")
"""


@pytest.fixture
def broken(start: Servers, tmp_path: Path) -> Server:
    (tmp_path / "broken.py").write_text(FAILS)
    options = ("--start-timeout", "8", "--run-dir", str(tmp_path / "run"))
    return start.start(*SERVE, f"{tmp_path}/broken.py:app", *options, wait_for=None, model="")


def refused(server: Server) -> tuple[int, dict[str, str]] | None:
    """Returns the answer about readiness once the import has failed."""
    status, body = server.get("/v2/health/ready")
    return None if "is being imported" in body["error"] else (status, body)


def test_what_only_a_worker_finds_out_ends_the_server_at_once(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_GRPCIO)
    app = f"{REPOSITORY}/deploy/app/basic.py:app"

    server = start.start(
        *SERVE, app, "--grpc-port", "0", wait_for=None, model="", run_dir=tmp_path / "run", PYTHONPATH=tmp_path
    )

    assert server.wait(20) == 1
    assert "pip install 'corosrv[grpc]'" in server.log
    assert server.log.count("Booting worker") == 1


def test_an_application_that_cannot_be_imported_is_told_in_the_log_alone_and_ends_the_server(broken: Server) -> None:
    standing = eventually(lambda: refused(broken), 20, "a word about the failed import")
    call = broken.get("/v2/models/add")

    for status, body in (standing, call):
        assert status == 503
        assert body["error"] == "the application could not be imported; the server's log says why"
    assert broken.wait(30) == 1
    assert "no worker of the application could be started: RuntimeError: no weights in /secret/path" in broken.log
