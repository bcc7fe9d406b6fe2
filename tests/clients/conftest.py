"""One server for all clients: the real model, behind a key, as somebody would run it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gevent.monkey
import pytest

from tests.serve.server import BIN, REPOSITORY, Server, Servers, servers

KEY = "sk-corosrv"
MODEL = "smollm2"
CLIENTS = BIN.parent / "clients" / "bin"  # what `make test` installs for those that cannot live beside the others
SECONDS = 240.0  # of one program, which imports for a while

# A program, its arguments, and more environment: what it printed.
Run = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _plain() -> None:
    """Clients run as they do at their users': on plain sockets and threads."""
    assert not gevent.monkey.is_module_patched("socket")


@pytest.fixture(scope="session")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("clients"), tmp_path_factory.mktemp("clients-cache")) as started:
        yield started


@pytest.fixture(scope="session")
def server(own_servers: Servers) -> Server:
    return own_servers.start(model="", model_alias=MODEL, ctx=2048, slots=8, threads=1, temp=0, api_keys=KEY)


def run_in(home: Path) -> Run:
    """Runs programs to their end, with nothing of this process's settings; one that fails is a failure."""

    def run(program: Path | str, *arguments: str, **environ: str) -> str:
        command: Sequence[str] = [str(program), *arguments]
        plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=plain | environ, timeout=SECONDS, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path)


def of_clients(program: str) -> Path:
    """A program of the second environment; skips the test where nobody has made it."""
    found = CLIENTS / program
    if not found.exists():
        pytest.skip(f"{program} is not installed: make test does it")
    return found


def says_something(text: Any) -> bool:
    return isinstance(text, str) and len(text.strip()) > 3
