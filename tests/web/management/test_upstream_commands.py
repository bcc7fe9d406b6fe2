"""`corosrv upstream` and `corosrv ps` against the socket of a server of upstreams."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from corosrv.cli import main
from corosrv.contracts.jobs import State
from corosrv.fleet.upstreams.policies import upstream_id
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.web.management import routes, upstream_routes
from corosrv.web.management.listener import ManagementListener, ManagementSettings
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
        apis = (upstream_routes.blueprint(pool, {"KEY_OF_THE_START"}), routes.queue_blueprint([pool.dispatcher]))
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
