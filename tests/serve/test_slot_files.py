"""Files of slots over HTTP: a server goes on where another one was, for the caller that it was, and for nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import Servers
from tests.serve.wire import Answer, Connection

pytestmark = pytest.mark.model

PROMPT = "The ship left the harbour at dawn, and nobody on board knew where the captain meant to go. " * 20
FILE = {"filename": "a.slot"}
MINE, YOURS = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer yours"}


@contextmanager
def connected(start: Servers, folder: Path) -> Iterator[Connection]:
    chosen: dict[str, Any] = {"model": "", "ctx": 1024, "slots": 2, "threads": 1, "api_keys": "mine,yours"}
    server = start.start(**chosen, slot_save_path=folder)
    try:
        with server.connect(timeout=60) as connection:
            yield connection
    finally:
        server.stop()


def told(connection: Connection, key: dict[str, str]) -> dict[str, Any]:
    body = {"prompt": PROMPT, "temperature": 0, "n_predict": 8, "id_slot": 1}
    answer = connection.ask("POST", "/completion", body, key)
    assert answer.status == 200, answer.body
    return {name: answer.json[name] for name in ("content", "timings")}


def act(connection: Connection, action: str, key: dict[str, str] = MINE, slot: int = 1) -> Answer:
    return connection.ask("POST", f"/slots/{slot}?action={action}", FILE, key)


def test_a_server_goes_on_where_another_one_was(start: Servers, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    with connected(start, folder) as connection:
        assert act(connection, "restore").status == 404
        assert act(connection, "save").status == 400
        first = told(connection, MINE)
        saved = act(connection, "save")
        assert act(connection, "save", YOURS).status == 400

    with connected(start, folder) as connection:
        foreign = act(connection, "restore", YOURS)
        restored = act(connection, "restore")
        second = told(connection, MINE)
        others = told(connection, YOURS)
        erased = act(connection, "erase", YOURS)
        file = folder / FILE["filename"]
        file.write_bytes(file.read_bytes()[:-1])
        broken = act(connection, "restore")

    n_prompt = first["timings"]["prompt_n"]
    assert (saved.status, saved.json["n_saved"], saved.json["id_slot"]) == (200, n_prompt + 7, 1)
    assert (foreign.status, foreign.error["type"]) == (404, "not_found_error")
    assert (restored.status, restored.json["n_restored"]) == (200, n_prompt + 7)
    assert restored.json["n_read"] == saved.json["n_written"]
    assert (second["content"], second["timings"]["cache_n"]) == (first["content"], n_prompt - 1)
    assert (others["content"], others["timings"]["cache_n"]) == (first["content"], 0)
    assert (erased.status, erased.json) == (200, {"id_slot": 1, "n_erased": n_prompt + 7})
    assert (broken.status, broken.error["param"]) == (400, "filename")
