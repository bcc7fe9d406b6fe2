"""A recipe of docs/how-to.md, and the copy of the tree in which it is followed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.test_readme import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to.md"
DEADLINE = 100.0  # seconds in which a server is up, and a program has ended


class Recipe:
    """One recipe, followed in a copy of `corosrv` and of what else it is made of.

    Files may be changed if the recipe names them, and added beside such, so that a step that is missing in it is
    missing in the copy.
    """

    def __init__(self, title: str, copy: Path, *folders: str) -> None:
        (self.text,) = re.findall(
            rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        self.copy = copy
        for folder in ("corosrv", *folders):
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
        self.environ |= {"PYTHONPATH": str(copy), "XDG_CACHE_HOME": str(copy / "cache")}

    @property
    def named(self) -> set[str]:
        return set(re.findall(r"`([\w/]+\.\w+)`", self.text))

    def change(self, path: str, *edits: tuple[str, str]) -> None:
        """Replaces texts by others, those that stand once in a file. An empty first text stands for its end."""
        assert path in self.named, f"the recipe does not name {path}"
        text = (self.copy / path).read_text()
        for old, new in edits:
            assert not old or text.count(old) == 1, f"{path} has {text.count(old)} times: {old}"
            text = text.replace(old, new) if old else f"{text}\n\n{new}"
        (self.copy / path).write_text(text)

    def add(self, path: str, text: str) -> None:
        """Writes a new file, in a folder of a file that the recipe names or in a new folder beside that."""
        place = Path(path)
        folders = {Path(name).parent for name in self.named}
        assert place.parent in folders or place.parent.parent in {folder.parent for folder in folders}, path
        (self.copy / place.parent).mkdir(exist_ok=True)
        (self.copy / path).write_text(text)

    def run(self, *command: str, timeout: float = DEADLINE, **environ: str) -> str:
        """Runs a command of Python's in the copy; returns what it printed."""
        ended = subprocess.run(
            [sys.executable, *command], cwd=self.copy, env=self.environ | environ, text=True, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4000:]
        return ended.stdout

    def program(self, text: str) -> str:
        """Runs a program, which finds the copy's modules."""
        return self.run("-c", f"import corosrv; assert corosrv.__file__.startswith({str(self.copy)!r})\n{text}")

    @contextmanager
    def server(self, *options: str, **environ: str) -> Iterator["Client"]:
        """Serves, by default a model without weights, until the end of the block."""
        port = free_port()
        options = options or ("--model", "synthetic:?tokens_per_s=0", "--ctx", "512", "--slots", "2")
        with (self.copy / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "corosrv", "serve", "--port", str(port), *options], cwd=self.copy,
                env=self.environ | environ, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            client = Client(f"http://127.0.0.1:{port}")
            deadline = time.monotonic() + DEADLINE
            while not client.is_healthy():
                assert process.poll() is None, (self.copy / "log").read_text()[-4000:]
                assert time.monotonic() < deadline, "not healthy in time"
                time.sleep(0.1)
            yield client
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Client:
    """Asks the server of a copy."""

    def __init__(self, address: str) -> None:
        self._address = address

    def is_healthy(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self._address}/health", timeout=5):
            return True
        return False

    def get(self, path: str) -> tuple[int, Any, dict[str, str]]:
        """Returns status, value and headers, whose names are in lower case."""
        return self._ask(urllib.request.Request(self._address + path))

    def post(self, path: str, **body: Any) -> tuple[int, Any, dict[str, str]]:
        """Returns status, value and headers, whose names are in lower case."""
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"}))

    def _ask(self, request: urllib.request.Request) -> tuple[int, Any, dict[str, str]]:
        try:
            answer = urllib.request.urlopen(request, timeout=DEADLINE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, json.loads(answer.read()), headers
