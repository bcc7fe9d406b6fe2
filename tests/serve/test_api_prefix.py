"""A server whose paths all begin with a prefix, as llama-server's --api-prefix has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import SERVE, Server, servers
from tests.serve.wire import request

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
    assert [*below.get(f"{PREFIX}/openapi.json")[1]["paths"]] == [PREFIX + path for path in paths]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/llm", PREFIX, "/llm/v0x/health"])
def test_nothing_is_outside_of_it(pair: tuple[Server, Server], path: str) -> None:
    status, answer = pair[0].get(path)

    assert status == 404
    assert f"all paths begin with {PREFIX}/" in str(answer)


def test_clients_need_its_address_and_no_more(pair: tuple[Server, Server]) -> None:
    with pair[0].client(prefix=PREFIX) as client:
        answer = client.chat.completions.create(model="synthetic", messages=HI, max_tokens=3)  # type: ignore[arg-type]

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_the_log_says_where_it_is(pair: tuple[Server, Server]) -> None:
    assert f"on http://127.0.0.1:{pair[0].port}{PREFIX}\n" in pair[0].log
