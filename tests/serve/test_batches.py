"""Files and batches of OpenAI's API on the wire, by its own client, and over kills of the server."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from flask import Flask
from msgspec import Raw
from openai.types import Batch

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.dialects.openai.batches.lines import LineResponse, result
from corosrv.serving.server import Server as OwnServer
from tests.serve.server import APP, BIN, REPOSITORY, Process, Server, Servers
from tests.serve.wire import Answer, request
from tests.support.waiting import eventually

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
FAST = "synthetic:?tokens_per_s=400"


def line(id: str, url: str = TEXT, **body: Any) -> str:
    known = {"messages": [{"role": "user", "content": "hi"}]} if url == CHAT else {"prompt": "hi"}
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": {"max_tokens": 2, **known, **body}})


def lines(n: int, **body: Any) -> list[str]:
    return [line(f"line-{number}", **body) for number in range(n)]


def make(client: openai.OpenAI, texts: list[str], endpoint: Any = TEXT) -> Batch:
    file = client.files.create(file=("lines.jsonl", "\n".join(texts).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def wait(client: openai.OpenAI, batch: Batch) -> Batch:
    def look() -> Batch | None:
        try:
            seen = client.batches.retrieve(batch.id)
        except openai.APIError:  # nobody serves now
            return None
        return seen if seen.status in ("completed", "failed", "expired", "cancelled") else None

    found = eventually(look, 60, "the batch's end")
    assert found is not None
    return found


def n_done(client: openai.OpenAI, batch: Batch) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    return 0 if counts is None else counts.completed + counts.failed


def results(client: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    return [] if file is None else [json.loads(text) for text in client.files.content(file).text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def filing(folder: Path, request: pytest.FixtureRequest) -> Server:
    """A server with two keys and a folder for files."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(
        model=FAST, files_path=folder, api_keys="mine,yours", file_bytes=110_000_000, max_body_bytes=100_000, slots=8
    )


@pytest.fixture
def mine(filing: Server) -> Iterator[openai.OpenAI]:
    with filing.client("mine") as client:
        yield client


def test_a_batch_of_chats_is_answered(mine: openai.OpenAI) -> None:
    texts = [line("first", CHAT), line("wrong", CHAT, temperature=-1), line("last", CHAT)]

    batch = wait(mine, make(mine, texts, CHAT))

    assert (batch.status, batch.endpoint) == ("completed", CHAT)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.failed) == (3, 1)
    good = {one["custom_id"]: one["response"] for one in results(mine, batch.output_file_id)}
    (bad,) = results(mine, batch.error_file_id)
    assert sorted(good) == ["first", "last"]
    assert good["first"]["status_code"] == 200
    assert good["first"]["body"]["object"] == "chat.completion"
    assert good["first"]["request_id"].startswith("req_")
    assert (bad["custom_id"], bad["response"]["status_code"], bad["error"]) == ("wrong", 400, None)
    assert bad["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (TEXT, {}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    ],
    ids=["text", "responses", "messages"],
)
def test_other_endpoints_answer_lines_too(mine: openai.OpenAI, url: str, body: dict[str, Any]) -> None:
    text = json.dumps(
        {"custom_id": "a", "method": "POST", "url": url, "body": body or {"prompt": "a", "max_tokens": 1}}
    )

    batch = wait(mine, make(mine, [text], url))

    (result,) = results(mine, batch.output_file_id)
    assert result["response"]["status_code"] == 200


def test_a_batch_whose_lines_cannot_run_says_why(mine: openai.OpenAI) -> None:
    batch = wait(mine, make(mine, [line("a"), line("a"), line("b", EMBEDDINGS), "x" * 200_000, line("c", stream=True)]))

    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_url"),
        (4, "line_too_large"),
        (5, "unsupported_parameter"),
    ]


def test_files_are_listed_shown_and_deleted(mine: openai.OpenAI) -> None:
    content = os.urandom(300_000)
    file = mine.files.create(file=("../a name.jsonl", content), purpose="batch")

    assert (file.bytes, file.filename, file.purpose) == (300_000, "../a name.jsonl", "batch")
    assert mine.files.retrieve(file.id) == file
    assert mine.files.content(file.id).read() == content
    assert file.id in [one.id for one in mine.files.list(purpose="batch")]
    assert mine.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        mine.files.content(file.id)


def test_files_and_batches_are_their_key_s_alone(filing: Server, mine: openai.OpenAI) -> None:
    batch = make(mine, [line("a")])

    with filing.client("yours") as yours:
        for look in (yours.files.retrieve, yours.files.content, yours.files.delete):
            with pytest.raises(openai.NotFoundError):
                look(batch.input_file_id)
        for look_at in (yours.batches.retrieve, yours.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                look_at(batch.id)
        with pytest.raises(openai.NotFoundError):
            yours.batches.create(input_file_id=batch.input_file_id, endpoint=TEXT, completion_window="24h")
        assert yours.files.list().data == yours.batches.list().data == []
    assert wait(mine, batch).status == "completed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"output_expires_after": {}}, None),
        ({"input_file_id": "file-1"}, "input_file_id"),
    ],
)
def test_a_batch_that_cannot_be_made_is_refused_by_name(mine: openai.OpenAI, body: Any, param: str | None) -> None:
    known = {"input_file_id": f"file-{'0' * 32}", "endpoint": TEXT, "completion_window": "24h"}

    with pytest.raises(openai.APIStatusError) as refused:
        mine.post("/batches", cast_to=object, body=known | body)

    assert refused.value.status_code in (400, 404)
    assert refused.value.param == param


def form(*parts: tuple[str, bytes], boundary: str = "xyz", end: bytes = b"--xyz--\r\n") -> bytes:
    pieces = (
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"
        for head, data in parts
    )
    return b"".join(pieces) + end


PURPOSE, FILE = ('name="purpose"', b"batch"), ('name="file"; filename="a"', b"{}")


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ((FILE, PURPOSE), 200, None),
        ((FILE,), 400, "purpose"),
        ((PURPOSE,), 400, "file"),
        ((PURPOSE, ('name="file"', b"{}")), 400, "file"),
        ((PURPOSE, FILE, FILE), 400, "file"),
        ((FILE, ('name="purpose"', b"fine-tune")), 400, "purpose"),
        ((FILE, PURPOSE, ('name="expires_after[seconds]"', b"3600")), 400, "expires_after[seconds]"),
        (((f'name="{"x" * 2_000_000}"', b""),), 400, None),
        (((f'name="{"x" * 40_000}"', b""),), 400, "x" * 80),
        (((f'name="{"x" * 40_000}"; filename="a"', b""),), 400, "x" * 80),
        ((PURPOSE,) * 17, 400, None),
    ],
)
def test_a_form_is_taken_or_refused_by_name(
    filing: Server, folder: Path, parts: tuple[tuple[str, bytes], ...], status: int, param: str | None
) -> None:
    before = set(folder.rglob("*.data"))
    headers = {"Content-Type": "multipart/form-data; boundary=xyz", "Authorization": "Bearer mine"}

    with filing.connect() as connection:
        answer = connection.ask("POST", "/v1/files", form(*parts), headers)

    assert answer.status == status
    assert status == 200 or answer.error["param"] == param
    assert len(set(folder.rglob("*.data")) - before) == (status == 200)
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data"])
def test_a_file_comes_in_a_form(filing: Server, content_type: str) -> None:
    with filing.connect() as connection:
        headers = {"Content-Type": content_type, "Authorization": "Bearer mine"}
        assert connection.ask("POST", "/v1/files", b"{}", headers).status == 415


def test_an_upload_that_breaks_off_leaves_nothing(filing: Server, folder: Path) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=xyz", "Authorization": "Bearer mine"}
    whole = request("POST", "/v1/files", form(PURPOSE, ('name="file"; filename="a"', b"x" * 900_000)), headers)
    before = set(folder.rglob("*.data"))

    with filing.connect() as connection:
        connection.send(whole[:600_000])
        eventually(lambda: list(folder.rglob("*.part")), what="a part of the file")

    eventually(lambda: not list(folder.rglob("*.part")), what="nothing of it")
    assert set(folder.rglob("*.data")) == before


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(filing: Server) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=xyz", "Authorization": "Bearer mine"}

    with filing.connect() as connection:
        answer = connection.ask("POST", "/v1/files", b"--xyz", headers | {"Content-Length": "200000000"})

    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_a_line_of_a_hundred_megabytes_is_refused_without_memory(filing: Server, mine: openai.OpenAI) -> None:
    begin = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "'
    before = filing.worker.peak_bytes()

    file = mine.files.create(file=("long", begin + b"x" * 100_000_000), purpose="batch")
    batch = wait(mine, mine.batches.create(input_file_id=file.id, endpoint=TEXT, completion_window="24h"))

    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [(1, "line_too_large")]
    assert filing.worker.peak_bytes() - before < 20_000_000


def n_running(server: Server) -> float:
    with server.connect() as connection:
        text = connection.ask("GET", "/metrics", headers={"Authorization": "Bearer mine"}).body.decode()
    return float(next(one.split()[-1] for one in text.splitlines() if one.startswith("corosrv_running{")))


def test_a_cancelled_batch_stops_its_lines(filing: Server, mine: openai.OpenAI) -> None:
    batch = make(mine, lines(5, max_tokens=4000))
    eventually(lambda: n_running(filing) == 5, what="lines that run")

    assert mine.batches.cancel(batch.id).status == "cancelling"
    batch = wait(mine, batch)

    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    eventually(lambda: n_running(filing) == 0, 5, "free slots, long before the lines are whole")
    with pytest.raises(openai.BadRequestError):
        mine.batches.cancel(batch.id)


def answered(client: openai.OpenAI, batch: Batch) -> Counter[str]:
    files = (batch.output_file_id, batch.error_file_id)
    return Counter(one["custom_id"] for file in files for one in results(client, file))


def test_a_batch_goes_on_after_a_kill_and_no_line_is_lost_or_answered_twice(start: Servers, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"model": "synthetic:?tokens_per_s=100", "files_path": tmp_path, "slots": 4}
    server = start.start(**chosen)
    with server.client() as client:
        batch = make(client, [*lines(30), line("wrong", temperature=-1)])
        eventually(lambda: n_done(client, batch) > 5, what="some answers")
    server.stop()

    server = start.start(**chosen)
    with server.client() as client:
        done = wait(client, batch)
        n_run = server.metrics()['corosrv_batch_lines_total{outcome="completed"}']

        counts = answered(client, done)
        assert (done.status, len(counts), set(counts.values())) == ("completed", 31, {1})
        assert n_run < 26, "what was answered before did not run again"


def test_of_two_processes_one_runs_a_batch_and_the_other_takes_over(start: Servers, tmp_path: Path) -> None:
    server = start.start(*APP, "-w", "2", model="synthetic:?tokens_per_s=100", files_path=tmp_path, slots=4)
    with server.client() as client:
        batch = make(client, lines(30))
        eventually(lambda: n_done(client, batch) > 5, what="some answers")
        lock = (tmp_path / "lock").stat().st_ino
        holders = [pid for pid in server.workers() if holds(pid, lock)]
        assert len(holders) == 1

        Process(holders[0]).kill()
        done = wait(client, batch)

        counts = answered(client, done)
    assert (done.status, len(counts), set(counts.values())) == ("completed", 30, {1})


def holds(pid: int, inode: int) -> bool:
    """Tells whether a process has the lock of a file."""
    locks = [text.split() for text in Path("/proc/locks").read_text().splitlines()]
    return any(int(text[4]) == pid and text[5].endswith(f":{inode}") for text in locks if text[1] == "FLOCK")


def test_a_disk_that_does_not_serve_is_told_in_words_until_it_does(start: Servers, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    server = start.start(model=FAST, files_path=folder)
    message = {"custom_id": "a", "params": {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}}

    def upload() -> Answer:
        headers = {"Content-Type": "multipart/form-data; boundary=xyz"}
        with server.connect() as connection:
            body = form(PURPOSE, ('name="file"; filename="a"', b"x" * 200_000))
            return connection.ask("POST", "/v1/files", body, headers)

    def add_messages() -> Answer:
        with server.connect() as connection:
            return connection.post({"requests": [message]}, "/v1/messages/batches")

    shutil.rmtree(folder)
    gone = [upload(), add_messages()]
    folder.mkdir()
    assert add_messages().status == 200
    _, most = resource.prlimit(server.worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.worker.pid, resource.RLIMIT_FSIZE, (100_000, most))
    full = upload()
    resource.prlimit(server.worker.pid, resource.RLIMIT_FSIZE, (most, most))
    assert upload().status == 200

    assert [answer.status for answer in (*gone, full)] == [503, 503, 503]
    assert all("files cannot be read or written here now: No such" in answer.error["message"] for answer in gone)
    assert "now: File too large" in full.error["message"]
    assert "Traceback" not in server.log


def test_without_a_folder_the_routes_name_the_setting(server: Server) -> None:
    with server.connect() as connection:
        answers = [
            connection.ask("GET", "/v1/files"),
            connection.ask("GET", "/v1/batches/batch_1"),
            connection.ask("POST", "/v1/batches", {}),
        ]

    for answer in answers:
        assert answer.status == 501
        assert "COROSRV_FILES_PATH" in answer.error["message"]


def test_a_server_without_a_hub_keeps_no_batches(tmp_path: Path) -> None:
    chosen = settings.load({"model": "synthetic:", "files_path": str(tmp_path)}, environ={})

    with pytest.raises(SettingsError, match="gevent"):
        Flask("app").register_blueprint(OwnServer(chosen).make_blueprint())


def run_command(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "corosrv"), "batch", *map(str, arguments)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
    return subprocess.run(command, env=inherited | environ, capture_output=True, text=True, timeout=60, check=False)


def custom_ids(path: Path) -> list[str]:
    return [json.loads(text)["custom_id"] for text in path.read_text().splitlines()]


def test_the_command_answers_the_lines_that_have_no_answer_yet(tmp_path: Path, cache: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([*lines(10), line("chat", CHAT)]))
    known = b"".join(result(f"line-{number}", LineResponse(200, "r", Raw(b"1"))) for number in range(3))
    target.write_bytes(known + result("line-3", None)[:-20])

    ended = run_command(source, target, "--model", FAST, XDG_CACHE_HOME=str(cache), COROSRV_API_KEYS="any")

    assert ended.returncode == 0, ended.stderr
    assert target.read_bytes().startswith(known)
    assert sorted(custom_ids(target)) == sorted([*(f"line-{number}" for number in range(10)), "chat"])
    assert "11 of 11 lines answered" in ended.stderr


def test_the_command_asks_a_server_and_tells_of_failed_lines(filing: Server, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("good") + "\n" + line("bad", temperature=-1))

    ended = run_command(source, target, "--url", filing.url, "--api-key", "mine")

    assert (ended.returncode, sorted(custom_ids(target))) == (1, ["bad", "good"]), ended.stderr
    assert "1 of them by errors" in ended.stderr


def test_the_command_refuses_a_file_that_is_no_batch(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a") + "\n" + line("a") + "\nhello")

    ended = run_command(source, target, "--url", "http://127.0.0.1:9")

    assert ended.returncode != 0
    assert "line 2: custom_id" in ended.stderr
    assert "line 3: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not target.exists()


def block(language: str, holds: str) -> str:
    page = (REPOSITORY / "docs" / "guide" / "batches.md").read_text()
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if holds in text]
    return str(found)


def test_the_program_of_the_guide_prints_the_answers_of_its_line(filing: Server, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(block("json", "custom_id"))
    program = block("python", "files.create").replace(":8080", f":{filing.port}").replace('"none"', '"mine"')

    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["custom_id"] == "one"
