"""The environment of the processes that a server starts: they run other people's code, and get none of its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.image_server import Files, chat, png
from tests.serve.server import Process, Server, servers
from tests.serve.wire import CHAT
from tests.support.predictors import PREDICTORS
from tests.support.waiting import eventually

APP = str(Path(__file__).parent / "looking_app.py") + ":app"
SECRET = "secret-of-the-server"
KEYS = {"Authorization": f"Bearer {SECRET}"}
KINDS = {
    "corosrv.images.encoder",
    "corosrv.images.decoder",
    "corosrv.dialects.kserve.grpc",
    "corosrv.workers.worker",
    "corosrv.workers.worker.app",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "token").write_text(SECRET)
    with servers(tmp_path_factory.mktemp("children"), cache) as started:
        yield Files.write(folder).start(
            started,
            worker_app=APP,
            predictor=PREDICTORS / "tasks.py:Predictor",
            grpc_port=0,
            api_keys=SECRET,
            run_dir=tmp_path_factory.mktemp("run"),
            mgmt_token_file=folder / "token",
            peer_token=SECRET,
            hf_token=SECRET,
            WEBHOOK_AUTH_TOKEN=SECRET,
            upstream="http://127.0.0.1:1?api_key_env=OWN_KEY",
            OWN_KEY=SECRET,
            COROSRV_UPSTREAM_KEY_OTHER=SECRET,
            HF_TOKEN="the-users",
        )


def environments(server: Server) -> dict[str, dict[str, str]]:
    """Returns the variables of the server's children, by the module that each runs."""
    found = {}
    for worker in server.workers():
        for pid in Process(worker).children():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found[words[words.index("-m") + 1]] = dict(
                line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line
            )
    return found


def test_no_process_that_a_server_starts_has_its_secrets(server: Server) -> None:
    with server.connect() as connection:
        assert connection.post(chat(png()), CHAT, KEYS).status == 200

    eventually(lambda: environments(server).keys() >= KINDS, what="all kinds of children")
    found = environments(server)

    for module, variables in found.items():
        assert [name for name, value in variables.items() if value == SECRET] == [], module
        assert "COROSRV_MGMT_TOKEN_FILE" not in variables, module
        assert variables["HF_TOKEN"] == "the-users", module
