"""`corosrv upstream` and `corosrv ps` against the socket of a server of upstreams."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corosrv.base.run_dir import process_name
from corosrv.cli import main
from corosrv.contracts.jobs import State
from corosrv.fleet.upstreams.policies import upstream_id
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.fleet.upstreams.spec import MAX_REMOVED, ChangesFile, parse
from corosrv.web.management import routes, upstream_routes
from corosrv.web.management.listener import ManagementListener, ManagementSettings
from corosrv.web.management.upstream_routes import ManagedUpstreams
from tests.web.management.serving import in_thread, short_folder

URL = "http://127.0.0.1:1"
ID = upstream_id(URL, ())

Run = Callable[..., Result]


@pytest.fixture
def pool() -> Iterator[UpstreamPool]:
    pool = UpstreamPool(UpstreamPoolSettings(is_elastic=True))
    yield pool
    pool.close()


@pytest.fixture
def run(pool: UpstreamPool) -> Iterator[Run]:
    """Runs a command of the command line."""
    with short_folder() as folder:
        managed = ManagedUpstreams(pool, {"KEY_OF_THE_START"})
        apis = (upstream_routes.blueprint(managed), routes.queue_blueprint([pool.dispatcher]))
        listener = ManagementListener(ManagementSettings(run_dir=folder), lambda: State.READY, apis)
        listener.start()
        yield lambda *words: in_thread(lambda: CliRunner().invoke(main, [*words, "--run-dir", folder]))
        listener.close()


def test_an_upstream_is_added_as_it_is_described(pool: UpstreamPool, run: Run):
    done = run("upstream", "add", URL, "--model", "a", "--model", "b", "--concurrency", "3", "--weight", "2")

    assert done.output == f"{ID} ({URL}) is probing\n"
    spec = pool.find(URL).spec
    assert (spec.models, spec.concurrency, spec.weight) == (("a", "b"), 3, 2.0)


@pytest.mark.parametrize(
    ("name", "words"), [("KEY_OF_THE_START", "probing"), ("COROSRV_UPSTREAM_KEY_A", "probing"), ("HOME", "api_key_env")]
)
def test_only_keys_of_upstreams_may_be_sent(run: Run, name: str, words: str):
    assert words in run("upstream", "add", URL, "--api-key-env", name).output


def test_upstreams_are_listed_and_stand_in_ps(run: Run):
    run("upstream", "add", URL, "--model", "a")

    for words in (("upstream", "list"), ("ps",)):
        shown = run(*words)

        assert shown.exit_code == 0, shown.output
        assert [ID, URL, "probing", "0/32"] in [line.split()[:4] for line in shown.output.splitlines()]


@pytest.mark.parametrize("name", [URL, ID])
def test_an_upstream_is_removed_by_its_url_or_its_id(pool: UpstreamPool, run: Run, name: str):
    run("upstream", "add", URL)

    assert run("upstream", "remove", name, "--abort").exit_code == 0

    assert [upstream for upstream in pool.upstreams if not upstream.is_draining] == []


def test_what_is_wrong_is_said(run: Run):
    assert "is no http or https URL" in run("upstream", "add", "ftp://a").output
    assert "there is no upstream" in run("upstream", "remove", URL).output


# Several processes of one server.


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as path:
        yield path


def process(folder: str) -> ManagedUpstreams:
    """Makes the upstreams of one process of a server whose first process this one is."""
    pool = UpstreamPool(UpstreamPoolSettings(is_elastic=True))
    return ManagedUpstreams(pool, (), ChangesFile(folder, os.getpid()))


def urls(process: ManagedUpstreams) -> list[str]:
    process.look()
    return [upstream.spec.url for upstream in process.pool.upstreams if not upstream.is_draining]


def test_what_one_process_changes_others_follow(folder: str):
    first, second = process(folder), process(folder)

    first.add(parse("http://a?concurrency=3"))
    second.add(parse("http://b"))
    assert urls(first) == urls(second) == ["http://a", "http://b"]
    first.remove("http://a")
    second.add(parse("http://a?concurrency=5"))

    assert urls(first) == urls(second) == ["http://b", "http://a"]
    assert [first.pool.find("http://a").concurrency, second.pool.find("http://a").concurrency] == [5, 5]


def test_a_process_adds_nothing_twice_and_knows_what_came_before_its_own_change(folder: str):
    first, second = process(folder), process(folder)
    first.add(parse("http://a?concurrency=3"))

    upstream, is_new = second.add(parse("http://a?concurrency=5"))

    assert (upstream.concurrency, is_new) == (3, False)
    assert urls(first) == urls(second) == ["http://a"]


def test_removed_urls_are_forgotten_in_order_and_those_that_are_there_are_not(folder: str):
    first = process(folder)
    first.add(parse("http://kept"))
    for number in range(MAX_REMOVED + 1):
        first.add(parse(f"http://gone:{number + 1000}"))
        first.remove(f"http://gone:{number + 1000}")

    changes = ChangesFile(folder, os.getpid()).look()

    assert [change.url for change in changes[:2]] == ["http://kept", "http://gone:1001"]
    assert len(changes) == MAX_REMOVED + 1


def test_a_server_that_takes_another_one_s_place_begins_with_what_that_knew(folder: str):
    with subprocess.Popen(["sleep", "60"]) as successor:
        process(folder).add(parse("http://a"))

        for _ in range(2):  # also where the predecessor has changed nothing since
            later = ChangesFile(folder, successor.pid, predecessor=os.getpid())

        assert [change.url for change in later.look()] == ["http://a"]
        successor.kill()
        successor.wait()
    process(folder)
    assert [path.stem for path in Path(folder).glob("*.upstreams")] == [f"{process_name(os.getpid())}-0"]


def test_a_file_that_holds_something_else_is_told_and_not_used(folder: str, caplog: pytest.LogCaptureFixture):
    (Path(folder) / f"{process_name(os.getpid())}-0.upstreams").write_text('[{"url": "http://a"}]')

    assert urls(process(folder)) == []

    assert "holds no changes of upstreams" in caplog.text
