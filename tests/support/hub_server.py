"""A small hub of the tests' own: repositories, commits and files, spoken as huggingface_hub asks for them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


@dataclass
class Repo:
    """A repository: files by revision, and what is to go wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    revisions: dict[str, dict[str, bytes]] = field(default_factory=dict)  # beside main
    needs_token: bool = False
    is_gated: bool = False
    fault: Callable[[str, bytes], bytes] = lambda path, content: content  # what is sent in place of a content
    stops_after: int | None = None  # bytes of a file, once
    size_told: int | None = None  # in place of each file's own
    gate: threading.Event | None = None  # waited for before the second half of a file

    def commit(self, revision: str) -> str:
        files = self.at(revision)
        assert files is not None
        listing = [(path, sha256(content)) for path, content in sorted(files.items())]
        return hashlib.sha1(repr(listing).encode()).hexdigest()

    def at(self, revision: str) -> dict[str, bytes] | None:
        named = {"main": self.files, **self.revisions}
        if revision in named:
            return named[revision]
        return next((files for name, files in named.items() if self.commit(name) == revision), None)


class Handler(BaseHTTPRequestHandler):
    """Answers as a hub does: the API, files by HEAD with a place elsewhere, and there their bytes."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.server.is_down:
            return self._reply(503)
        if path.startswith("/cdn/"):
            return self._send_bytes(path)
        is_api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
        repo = self.server.repos.get(f"{owner}/{name}")
        if repo is None or (repo.needs_token and self._token() != TOKEN):
            return self._reply(401, error="RepoNotFound")
        if repo.is_gated and self._token() != TOKEN:
            return self._reply(403, error="GatedRepo")
        revision = rest[1] if len(rest) > 1 else "main"
        if repo.at(revision) is None:
            revision = "/".join(rest[1:])
        if (files := repo.at(revision)) is None:
            return self._reply(404, error="RevisionNotFound")
        if is_api:
            return self._reply(200, json.dumps(self._info(f"{owner}/{name}", repo, revision, files)).encode())
        return self._point(f"{owner}/{name}", repo, revision, "/".join(rest[2:]), files)

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _info(self, name: str, repo: Repo, revision: str, files: dict[str, bytes]) -> dict[str, object]:
        siblings = [
            {
                "rfilename": path,
                "size": repo.size_told or len(content),
                "blobId": sha256(content)[:40],
                "lfs": {"sha256": sha256(content), "size": repo.size_told or len(content), "pointerSize": 134},
            }
            for path, content in files.items()
        ]
        return {"_id": "1", "id": name, "modelId": name, "sha": repo.commit(revision), "siblings": siblings}

    def _point(self, name: str, repo: Repo, revision: str, path: str, files: dict[str, bytes]) -> None:
        if path not in files:
            return self._reply(404, error="EntryNotFound")
        commit, content = repo.commit(revision), files[path]
        return self._reply(
            302,
            Location=f"{self.server.files.url}/cdn/{name}/{commit}/{path}",
            **{"X-Repo-Commit": commit, "X-Linked-ETag": f'"{sha256(content)}"',
               "X-Linked-Size": str(repo.size_told or len(content))},
        )  # fmt: skip

    def _send_bytes(self, path: str) -> None:
        assert "Authorization" not in self.headers, "the token went to where the files are"
        owner, name, commit, *rest = path.removeprefix("/cdn/").split("/")
        repo = self.server.repos[f"{owner}/{name}"]
        files = repo.at(commit)
        assert files is not None
        file = "/".join(rest)
        content = repo.fault(file, files[file])
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        rest_bytes = content[begin:]
        if repo.stops_after is not None:
            self.wfile.write(rest_bytes[: repo.stops_after])
            self.close_connection = True
            return
        half = len(rest_bytes) // 2
        self.wfile.write(rest_bytes[:half])
        if repo.gate is not None:
            self.wfile.flush()
            assert repo.gate.wait(60), "nobody opened the gate"
        self.wfile.write(rest_bytes[half:])

    def _reply(self, code: int, content: bytes = b"", error: str = "", **headers: str) -> None:
        self.send_response(code)
        if error:
            self.send_header("X-Error-Code", error)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


class HubServer(ThreadingHTTPServer):
    """`repos` by name; `requests`: method, path and range of each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.is_down = False
        self.files: HubServer = self  # where the bytes are: another server, that must not see the token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self) -> list[str]:
        """The ranges that were asked for, of files."""
        return [span for _, path, span in self.requests if path.startswith("/cdn/")]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are the tests' doing."""

    def environ(self, home: Path) -> dict[str, str]:
        """What points the library here, with a cache of its own."""
        return {
            "HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "10",
            "NO_PROXY": "*", "no_proxy": "*",
        }  # fmt: skip


@functools.cache
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def clean_environment() -> dict[str, str]:
    """This process's environment without what would point the library elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "COROSRV_"))}


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs a hub, and the server that has its files."""
    server, files = HubServer(), HubServer()
    files.repos, files.requests, server.files = server.repos, server.requests, files
    threads = [
        threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        for each in (server, files)
    ]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        for each in (server, files):
            each.shutdown()
            each.server_close()
        for thread in threads:
            thread.join()
