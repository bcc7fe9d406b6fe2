"""Batches of Anthropic's messages on the wire, by its own client, and over a kill of the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from tests.serve.server import REPOSITORY, Server, Servers
from tests.support.waiting import eventually

PATH = "/v1/messages/batches"
FAST = "synthetic:?tokens_per_s=400"


def asked(id: str, **params: Any) -> Any:
    known = {"model": "any", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    return {"custom_id": id, "params": known | params}


def client_of(server: Server, key: str = "any", prefix: str = "") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{server.port}{prefix}", api_key=key, max_retries=0, timeout=30
    )


def wait(client: anthropic.Anthropic, batch: MessageBatch) -> MessageBatch:
    def look() -> MessageBatch | None:
        seen = client.messages.batches.retrieve(batch.id)
        return seen if seen.processing_status == "ended" else None

    found = eventually(look, 60, "the batch's end")
    assert found is not None
    return found


def results(client: anthropic.Anthropic, batch: MessageBatch) -> dict[str, MessageBatchIndividualResponse]:
    return {one.custom_id: one for one in client.messages.batches.results(batch.id)}


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Server:
    """A server with two keys and a folder for files."""
    kept: Servers = request.getfixturevalue("_kept")
    folder = tmp_path_factory.mktemp("messages")
    return kept.start(model=FAST, files_path=folder, api_keys="mine,yours", max_body_bytes=100_000, slots=8)


@pytest.fixture
def mine(keeping: Server) -> Iterator[anthropic.Anthropic]:
    with client_of(keeping, "mine") as client:
        yield client


def test_a_batch_of_messages_is_answered(mine: anthropic.Anthropic) -> None:
    batch = mine.messages.batches.create(requests=[asked("good"), asked("bad", temperature=-1)])
    assert (batch.processing_status, batch.request_counts.processing, batch.results_url) == ("in_progress", 2, None)

    batch = wait(mine, batch)

    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    assert batch.ended_at is not None
    assert 86_390 < (batch.expires_at - batch.created_at).total_seconds() < 86_410
    found = results(mine, batch)
    good, bad = found["good"].result, found["bad"].result
    assert good.type == "succeeded"
    assert (good.message.type, good.message.usage.output_tokens) == ("message", 2)
    assert bad.type == "errored"
    assert bad.error.error.type == "invalid_request_error"
    assert bad.error.error.message.startswith("temperature")
    assert bad.error.request_id


def test_batches_are_listed_page_by_page_and_deleted(mine: anthropic.Anthropic) -> None:
    made = [mine.messages.batches.create(requests=[asked("a")]).id for _ in range(3)]

    listed = [batch.id for batch in mine.messages.batches.list(limit=2)]
    before = mine.messages.batches.list(before_id=made[0], limit=1)

    assert set(made) <= set(listed)
    assert len(listed) == len(set(listed))
    assert (before.data[0].id in made, before.has_more) == (True, True)
    wait(mine, mine.messages.batches.retrieve(made[0]))
    deleted = mine.messages.batches.delete(made[0])
    assert (deleted.id, deleted.type) == (made[0], "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        mine.messages.batches.retrieve(made[0])


def test_a_cancelled_batch_tells_which_messages_did_not_run(mine: anthropic.Anthropic) -> None:
    batch = mine.messages.batches.create(requests=[asked(f"a{n}", max_tokens=4000) for n in range(30)])

    assert mine.messages.batches.cancel(batch.id).processing_status == "canceling"
    batch = wait(mine, batch)

    assert batch.request_counts.canceled == 30
    assert {one.result.type for one in results(mine, batch).values()} == {"canceled"}
    with pytest.raises(anthropic.BadRequestError, match="no longer"):
        mine.messages.batches.cancel(batch.id)


def test_batches_are_their_key_s_alone(keeping: Server, mine: anthropic.Anthropic) -> None:
    batch = mine.messages.batches.create(requests=[asked("a")])

    with client_of(keeping, "yours") as yours:
        for look in (yours.messages.batches.retrieve, yours.messages.batches.cancel, yours.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError):
                look(batch.id)
        assert yours.messages.batches.list().data == []
    assert wait(mine, batch).request_counts.succeeded == 1


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "requests"),
        ("x", "requests"),
        ([asked("a"), asked("a")], r"requests\[1\].custom_id"),
        ([asked("a b")], r"requests\[0\].custom_id"),
        ([asked("a" * 65)], r"requests\[0\].custom_id"),
        ([{"custom_id": "a"}], r"requests\[0\].params"),
        ([{"custom_id": "a", "params": []}], r"requests\[0\].params"),
        ([{"custom_id": "a", "params": {}, "more": 1}], "more"),
        ([asked("a", stream=True)], r"requests\[0\].params.stream"),
    ],
)
def test_a_batch_that_cannot_be_made_is_refused_by_name(keeping: Server, requests: Any, words: str) -> None:
    with keeping.connect() as connection:
        answer = connection.ask("POST", PATH, {"requests": requests}, {"Authorization": "Bearer mine"})

    assert answer.status == 400
    assert answer.json["type"] == "error"
    assert answer.error["type"] == "invalid_request_error"
    assert re.search(words, answer.error["message"]), answer.error


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after_id=x", "before_id=x", "after_id=&before_id="]
)
def test_a_page_that_there_is_not_is_refused(keeping: Server, query: str) -> None:
    with keeping.connect() as connection:
        answer = connection.ask("GET", f"{PATH}?{query}", headers={"Authorization": "Bearer mine"})

    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


def test_a_body_with_line_breaks_is_lines_of_one_each(keeping: Server, mine: anthropic.Anthropic) -> None:
    text = json.dumps({"requests": [asked("a", system="two\nlines"), asked("b")]}, indent=2).replace("\n", "\r\n")
    with keeping.connect() as connection:
        made = connection.ask("POST", PATH, text.encode(), {"Authorization": "Bearer mine"}).json

    assert wait(mine, mine.messages.batches.retrieve(made["id"])).request_counts.succeeded == 2


def test_the_program_of_the_guide_prints_its_result(keeping: Server) -> None:
    page = (REPOSITORY / "docs" / "guide" / "batches.md").read_text()
    (program,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "anthropic" in text]
    program = program.replace(":8080", f":{keeping.port}").replace('"none"', '"mine"')

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.stdout, ended.stderr) == ("one succeeded\n", "")


def n_results(folder: Path) -> int:
    return sum(path.read_bytes().count(b'"id":"batch_req_') for path in folder.rglob("*.data"))


def test_a_batch_goes_on_after_a_kill(start: Servers, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"model": "synthetic:?tokens_per_s=100", "files_path": tmp_path, "slots": 4}
    server = start.start(**chosen)
    with client_of(server) as client:
        batch = client.messages.batches.create(requests=[asked(f"a{n}", max_tokens=20) for n in range(24)])
        eventually(lambda: n_results(tmp_path) > 4, what="some answers")
    server.stop()

    server = start.start(**chosen)
    with client_of(server) as client:
        done = wait(client, batch)

        assert done.request_counts.succeeded == 24
        assert set(results(client, done)) == {f"a{n}" for n in range(24)}
        n_run = server.metric('batch_lines_total{outcome="completed"}')
        assert n_run < 20, "what was answered before did not run again"


def test_results_are_found_below_a_prefix(start: Servers, tmp_path: Path) -> None:
    server = start.start(model=FAST, files_path=tmp_path, api_prefix="/llm", wait_for=None)
    server.wait_until("ok", "/llm")
    with client_of(server, prefix="/llm") as client:
        batch = wait(client, client.messages.batches.create(requests=[asked("a")]))

        assert batch.results_url == f"http://127.0.0.1:{server.port}/llm{PATH}/{batch.id}/results"
        assert results(client, batch)["a"].result.type == "succeeded"
