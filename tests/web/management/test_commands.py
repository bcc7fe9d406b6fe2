"""`corosrv ps`, `drain` and `scale` against a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from corosrv.cli import main
from corosrv.web.management import client
from tests.support.waiting import wait_until
from tests.web.management.serving import Management, in_thread, listening, short_folder
from tests.workers.manager.scripted import call, pool_card


@pytest.fixture
def server() -> Iterator[Management]:
    with listening(pool_card("default", "add", slots=2)) as management:
        wait_until(lambda: management.script.ids() == ["default/0"])
        yield management


def test_ps_shows_pools_workers_and_queues_as_tables(server: Management):
    for _ in range(3):
        call(server.manager, "add")

    shown = server.run("ps")

    assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines()]
    assert rows[0][0] == "corosrv"
    assert rows[0][-1] == "ready"
    assert ["default", "1/1", "1", "1", "1"] in [row[:5] for row in rows]
    assert ["default/0", "ready", "1001"] in [row[:3] for row in rows]
    assert ["model:add:", "ready", "1/64"] in [row[:3] for row in rows]
    assert all(line == line.rstrip() for line in shown.output.splitlines())


def test_ps_shows_json_to_programs(server: Management):
    shown = json.loads(server.run("ps", "--json").output)

    assert [worker["id"] for worker in shown["workers"]] == ["default/0"]
    assert [pool["name"] for pool in shown["pools"]] == ["default"]
    assert [queue["key"] for queue in shown["queues"]] == ["model:add:"]
    assert shown["server"]["state"] == "ready"


def test_drain_replaces_a_worker(server: Management):
    shown = server.run("drain", "default/0")

    assert shown.output == "default/0 (process 1001) is being replaced\n"
    wait_until(lambda: server.script.ids() == ["default/1"])


def test_scale_changes_a_pool(server: Management):
    shown = server.run("scale", "default", "2", "4")

    assert shown.output == "the pool default may have from 2 to 4 workers; ready now: 1\n"
    wait_until(lambda: len(server.script.ids()) == 2)
    assert json.loads(server.run("scale", "default", "2", "5", "--json").output)["max"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("drain", "default/7"), "there is no worker 'default/7'"),
        (("scale", "other", "1", "2"), "there is no pool 'other'"),
        (("scale", "default", "2", "1"), "0 <= min <= max"),
        (("ps", "--server", "1"), "no server with the process id 1 has a management socket"),
    ],
)
def test_what_the_server_refuses_is_said(server: Management, words: tuple[str, ...], message: str):
    shown = server.run(*words)

    assert shown.exit_code == 1
    assert message in shown.output


@pytest.mark.parametrize("words", [("scale", "default", "one", "2"), ("scale", "default", "-1", "2"), ("drain",)])
def test_words_that_make_no_sense_are_refused_before_any_call(words: tuple[str, ...]):
    assert CliRunner().invoke(main, words).exit_code == 2


def test_without_a_server_the_folder_is_named():
    with short_folder() as folder:
        shown = CliRunner().invoke(main, ["ps", "--run-dir", folder])

        assert shown.exit_code == 1
        assert f"no server has a management socket in {folder}" in shown.output


def test_a_folder_that_others_can_use_is_not_believed(tmp_path: Path):
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)

    shown = CliRunner().invoke(main, ["ps", "--run-dir", str(tmp_path / "open")])

    assert shown.exit_code == 1
    assert "can be used by others" in shown.output


def test_sockets_of_killed_servers_are_passed_over(server: Management):
    listener = client.socket.socket(client.socket.AF_UNIX)
    listener.bind(f"{server.run_dir}/00000000.sock")
    listener.close()

    assert server.run("ps").exit_code == 0


def test_several_servers_are_listed_and_one_is_chosen(server: Management, monkeypatch: pytest.MonkeyPatch):
    with listening(pool_card("other"), run_dir=server.run_dir) as other:
        wait_until(lambda: other.script.ids())
        about = client.ManagementClient.call

        def with_own_pid(self, method, target, body=None):
            answer = about(self, method, target, body)
            return answer | {"pid": 42} if target == "/v1/server" and self.path == other.listener.path else answer

        monkeypatch.setattr(client.ManagementClient, "call", with_own_pid)
        listed, chosen = server.run("ps"), server.run("ps", "--server", "42", "--json")

    assert listed.exit_code == 1
    assert "2 servers run here: choose one\n  --server " in listed.output
    assert [pool["name"] for pool in json.loads(chosen.output)["pools"]] == ["other"]


def test_the_run_directory_comes_from_the_environment(server: Management, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COROSRV_RUN_DIR", server.run_dir)

    shown = in_thread(lambda: CliRunner().invoke(main, ["ps"]))

    assert "default/0" in shown.output
