"""Applications that cannot be served: the server says why, and ends where nothing else is left to serve."""

from __future__ import annotations

from pathlib import Path

from tests.serve.server import REPOSITORY, SERVE, START_SECONDS, Servers

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


def test_what_only_a_worker_finds_out_ends_the_server_at_once(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_GRPCIO)
    app = f"{REPOSITORY}/deploy/app/basic.py:app"

    server = start.start(
        *SERVE, app, "--grpc-port", "0", wait_for=None, model="", run_dir=tmp_path / "run", PYTHONPATH=tmp_path
    )

    assert server.wait(START_SECONDS) == 1
    assert "pip install 'corosrv[grpc]'" in server.log
    assert server.log.count("Booting worker") == 1


def test_an_application_that_cannot_be_imported_ends_the_server_at_once(start: Servers, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(FAILS)

    server = start.start(
        *SERVE, f"{tmp_path}/broken.py:app", "--run-dir", str(tmp_path / "run"), wait_for=None, model=""
    )

    assert server.wait(START_SECONDS) == 1
    assert "corosrv cannot start: the application could not be imported: RuntimeError: no weights" in server.log
    assert server.log.count("raise RuntimeError") == 1
