"""A server whose paths all begin with a prefix, as llama-server's --api-prefix has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import SERVE, Server, free_port, servers
from tests.serve.test_grpc import grpc_port, infer
from tests.serve.wire import request
from tests.support.waiting import eventually

PREFIX = "/llm/v0"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[tuple[Server, Server]]:
    """Yields a server with the prefix, and one that is the same without it."""
    folder = tmp_path_factory.mktemp("prefix")
    with servers(folder, cache) as started:
        settings: dict[str, Any] = {"model": "synthetic:", "slots": 4, "files_path": folder}
        plain = started.start(*SERVE, **settings)
        below = started.start(*SERVE, "--api-prefix", PREFIX, **settings, wait_for=None)
        below.wait_until("ok", prefix=PREFIX)
        yield below, plain


def statuses(server: Server, prefix: str, paths: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Returns the status of each route's answer, of which no more is read: some stream without an end."""
    found = {}
    for path, operations in paths.items():
        for method in operations:
            with server.connect(timeout=60) as connection:
                filled = prefix + path.replace("{", "").replace("}", "")
                connection.send(request(method.upper(), filled, {} if method == "post" else None))
                found[method, path] = connection.head().status
    return found


def test_every_route_answers_below_the_prefix_as_it_does_without(pair: tuple[Server, Server]) -> None:
    below, plain = pair
    paths = plain.get("/openapi.json")[1]["paths"]

    found = statuses(below, PREFIX, paths)

    assert found == statuses(plain, "", paths)
    assert len(found) > 50
    assert sum(status == 404 for status in found.values()) < len(found) / 3, "those of things that are not there"
    assert below.get(f"{PREFIX}/openapi.json")[1]["servers"] == [{"url": PREFIX}]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/llm", "/llm/v0x/health"])
def test_nothing_is_outside_of_it(pair: tuple[Server, Server], path: str) -> None:
    status, answer = pair[0].get(path)

    assert status == 404
    assert f"all paths begin with {PREFIX}/" in str(answer)


def test_the_prefix_without_a_slash_leads_to_the_page(pair: tuple[Server, Server]) -> None:
    with pair[0].connect() as connection:
        connection.send(request("GET", f"{PREFIX}?model=a%20b"))
        head = connection.head()

    assert (head.status, head.headers["location"]) == (308, f"{PREFIX}/?model=a%20b")


def test_clients_need_its_address_and_no_more(pair: tuple[Server, Server]) -> None:
    with pair[0].client(prefix=PREFIX) as client:
        answer = client.chat.completions.create(model="synthetic", messages=HI, max_tokens=3)  # type: ignore[arg-type]

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_the_log_says_where_it_is(pair: tuple[Server, Server]) -> None:
    assert f"on http://127.0.0.1:{pair[0].port}{PREFIX}\n" in pair[0].log


def test_worker_processes_tell_each_other_below_it(tmp_path: Path, cache: Path) -> None:
    models = "small=synthetic:,large=synthetic:?length=5"
    with servers(tmp_path, cache) as started:
        server = started.start(*SERVE, "-w", "2", "--api-prefix", PREFIX, model=models, slots=2, wait_for=None)
        server.wait_until("ok", prefix=PREFIX)

        def generate(**more: Any) -> int:
            with server.connect(timeout=60) as connection:
                body = {"model": "large", "stream": False, **more}
                return connection.post(body, f"{PREFIX}/api/generate").status

        def running() -> set[int]:
            return {len(server.get(f"{PREFIX}/api/ps")[1]["models"]) for _ in range(6)}

        assert [generate(prompt="hi") for _ in range(8)] == [200] * 8
        assert running() == {2}
        assert generate(keep_alive=0) == 200
        eventually(lambda: running() == {1}, what="no worker has the model")


def test_worker_processes_send_each_other_lines_of_batches_and_calls_under_a_key_below_it(
    tmp_path: Path, cache: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    line = {"method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": "hi", "max_output_tokens": 16}}
    text = "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(3)).encode()
    sent = infer_request("m", Tensor("text_input", "BYTES", [1], data=[b"hi"]), parameters={"max_tokens": 3})
    keys = [f"key-{number}" for number in range(4)]  # of some of which another process than the batches' has the state
    with servers(tmp_path, cache) as started:
        server = started.start(
            *SERVE, "-w", "2", "--api-prefix", PREFIX, model="m=synthetic:", ctx=4096, files_path=files,
            api_keys=",".join(keys), grpc_port=free_port(), wait_for=None,
        )  # fmt: skip
        server.wait_until("ok", prefix=PREFIX)
        for key in keys:
            with server.client(key, PREFIX) as client:
                file = client.files.create(file=("lines.jsonl", text), purpose="batch")
                id = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h").id
                eventually(lambda id=id: client.batches.retrieve(id).status == "completed", what="the batch's end")
                assert client.batches.retrieve(id).request_counts.completed == 3
            metadata = {"authorization": f"Bearer {key}", "idempotency-key": "one"}
            answers = [infer(grpc_port(server), metadata, sent) for _ in range(6)]
            assert len({answer.SerializeToString() for answer in answers}) == 1

        def n_generated() -> int:
            with server.connect() as connection:
                shown = connection.ask("GET", f"{PREFIX}/metrics", None, {"Authorization": f"Bearer {keys[0]}"}).body
            return int(float(re.findall(rb"corosrv_generated_tokens_total{[^}]*} (\S+)", shown)[0]))

        eventually(lambda: n_generated() == len(keys) * (3 * 16 + 3), what="the tokens of each line and of one call")
