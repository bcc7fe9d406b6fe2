"""A server that stays among the upstreams of fronts, which come and go."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from corosrv.cli import main
from corosrv.contracts.jobs import State
from corosrv.fleet.upstreams.policies import upstream_id
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.web.management import upstream_routes
from corosrv.web.management.client import Membership, RemoteClient
from corosrv.web.management.listener import ManagementListener, ManagementSettings
from corosrv.web.management.upstream_routes import ManagedUpstreams
from tests.web.management.serving import in_thread, short_folder

URL = "http://127.0.0.1:1"
ID = upstream_id(URL, ())
TOKEN = "a token of sixteen characters or more"
TIMEOUT = 30.0  # seconds


@contextlib.contextmanager
def front(pool: UpstreamPool, port: int = 0) -> Iterator[int]:
    """Serves the management API of a front; returns its port."""
    with short_folder() as folder:
        token = Path(folder, "token")
        token.write_text(TOKEN)
        settings = ManagementSettings(run_dir=folder, port=port, token_file=str(token))
        listener = ManagementListener(
            settings, lambda: State.READY, (upstream_routes.blueprint(ManagedUpstreams(pool)),)
        )
        listener.start()
        try:
            assert listener.port is not None
            yield listener.port
        finally:
            listener.close()


@pytest.fixture
def pool() -> Iterator[UpstreamPool]:
    pool = UpstreamPool(UpstreamPoolSettings(is_elastic=True))
    yield pool
    pool.close()


@pytest.fixture
def other_pool() -> Iterator[UpstreamPool]:
    pool = UpstreamPool(UpstreamPoolSettings(is_elastic=True))
    yield pool
    pool.close()


def urls(pool: UpstreamPool) -> list[str]:
    return [upstream.spec.url for upstream in pool.upstreams if not upstream.is_draining]


def client(port: int) -> RemoteClient:
    return RemoteClient(f"http://127.0.0.1:{port}", TOKEN, timeout=5)


def test_each_front_gets_the_server_once_however_often_it_is_added(pool: UpstreamPool, other_pool: UpstreamPool):
    words: list[str] = []
    with front(pool) as first, front(other_pool) as second:
        membership = Membership([client(first), client(second)], {"url": URL, "concurrency": 3}, words.append)

        in_thread(membership.renew)
        in_thread(membership.renew)

    assert urls(pool) == urls(other_pool) == [URL]
    assert pool.find(URL).spec.concurrency == 3
    assert words == [
        f"http://127.0.0.1:{first}: {URL} is an upstream, {ID}",
        f"http://127.0.0.1:{second}: {URL} is an upstream, {ID}",
    ]


def test_a_front_that_was_started_anew_gets_the_server_again(pool: UpstreamPool, other_pool: UpstreamPool):
    words: list[str] = []
    with front(pool) as port:
        membership = Membership([client(port)], {"url": URL}, words.append)
        in_thread(membership.renew)
    in_thread(membership.renew)

    with front(other_pool, port):
        in_thread(membership.renew)

    assert urls(other_pool) == [URL]
    assert [text.partition(": ")[2].split()[:2] for text in words] == [[URL, "is"], ["no", "success:"], [URL, "is"]]


def test_one_front_that_is_gone_keeps_the_server_from_no_other(pool: UpstreamPool):
    with front(pool) as port:
        in_thread(Membership([RemoteClient("http://127.0.0.1:1"), client(port)], {"url": URL}, lambda _: None).renew)

    assert urls(pool) == [URL]


def test_a_name_that_leads_nowhere_is_told(pool: UpstreamPool):
    words: list[str] = []

    Membership([RemoteClient("http://nowhere.invalid:8079")], {"url": URL}, words.append).renew()

    (text,) = words
    assert text.startswith("http://nowhere.invalid:8079: the name in it leads nowhere")


def test_a_server_that_leaves_drains(pool: UpstreamPool):
    with front(pool) as port:
        membership = Membership([client(port)], {"url": URL}, lambda _: None)
        in_thread(membership.renew)
        upstream = pool.find(URL)

        in_thread(membership.leave)

    assert upstream.is_draining
    assert urls(pool) == []


def test_the_command_joins_and_leaves_when_it_is_stopped(pool: UpstreamPool, tmp_path: Path):
    with front(pool) as port:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "corosrv", "upstream", "join", URL + "/", "--token-file", str(token)]
        process = subprocess.Popen(
            [*command, "--server", f"http://127.0.0.1:{port}", "--concurrency", "5"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            joined = in_thread(process.stdout.readline)
            spec = pool.find(URL).spec

            process.send_signal(signal.SIGTERM)
            left = in_thread(process.stdout.readline)
            status = in_thread(process.wait, TIMEOUT)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    assert joined == f"http://127.0.0.1:{port}: {URL} is an upstream, {ID}\n"
    assert spec.concurrency == 5
    assert left == f"http://127.0.0.1:{port}: {URL} leaves\n"
    assert status == 0
    assert urls(pool) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ftp://a", "--server", "http://front:8079"), "is no http or https URL"),
        ((URL, "--server", "front"), "is no URL"),
        ((URL, "--server", "http://front:8079", "--token-file", "/no/such/token"), "cannot be read"),
    ],
)
def test_words_that_cannot_work_end_the_command_at_once(words: tuple[str, ...], message: str):
    shown = CliRunner().invoke(main, ["upstream", "join", *words])

    assert shown.exit_code == 1
    assert message in shown.output
