"""The command line: what it takes, refuses and hides."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from corosrv import cli
from corosrv.client.bench.command import bench, plan_of
from corosrv.client.bench.plan import BenchPlan, Mix, Point


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["bench", *arguments])


def plan(*arguments: str) -> BenchPlan:
    with bench.make_context("bench", ["--url", "http://x", *arguments]) as context:
        return plan_of(context.params)


def test_without_options_there_is_a_sweep_of_short_chats():
    assert plan() == BenchPlan(points=(Point(1), Point(8), Point(32)))


@pytest.mark.parametrize(
    ("arguments", "points"),
    [
        (["--clients", "4"], (Point(4),)),
        (["--clients", "1,100"], (Point(1), Point(100))),
        (["--rate", "0.5,2"], (Point(rate=0.5), Point(rate=2.0))),
        (["--mix", "arrivals"], (Point(16, 1.0),)),
        (["--mix", "arrivals", "--clients", "4", "--rate", "2"], (Point(4, 2.0),)),
    ],
)
def test_points_are_clients_or_rates_or_both(arguments, points):
    assert plan(*arguments).points == points


def test_options_go_into_the_plan():
    chosen = plan(
        "--mix", "shared", "--rounds", "2", "--warmup", "0", "-n", "9", "--tokens", "5", "--no-force", "--completions",
        "--temperature", "0", "--seed", "7", "--extra", '{"top_k": 3}', "--timeout", "2.5", "--processes", "2",
    )  # fmt: skip

    assert chosen == BenchPlan(
        mix=Mix.SHARED, points=(Point(1), Point(8), Point(32)), rounds=2, warmup=0, requests=9, tokens=5,
        is_forced=False, is_chat=False, temperature=0.0, seed=7, extra={"top_k": 3}, timeout=2.5, processes=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--url"),
        (["--url", "http://x", "--clients", "1,zero"], "--clients"),
        (["--url", "http://x", "--clients", "0"], "above zero"),
        (["--url", "http://x", "--rate", "-1"], "above zero"),
        (["--url", "http://x", "--goodput"], "--ttft-limit"),
        (["--url", "http://x", "--goodput", "--ttft-limit", "9", "--clients", "2"], "no --clients"),
        (["--url", "http://x", "--turns", "2", "--rate", "1"], "--turns"),
        (["--url", "http://x", "--turns", "2", "--completions"], "--turns"),
        (["--url", "http://x", "--prompts", __file__, "--mix", "long"], "one of"),
        (["--url", "http://x", "--trace", __file__, "--clients", "2"], "a trace says when"),
        (["--url", "http://x", "--rate", "nan"], "above zero"),
        (["--url", "http://x", "--rate", "1", "--clients", "1"], "leave out --clients"),
        (["--url", "http://x", "--mix", "arrivals", "--processes", "2"], "leave out --processes"),
        (["--url", "http://x", "--mix", "other"], "--mix"),
        (["--url", "http://x", "--extra", "[1]"], "JSON object"),
        (["--url", "http://x", "--rounds", "0"], "--rounds"),
    ],
)
def test_what_click_refuses_has_its_status(arguments, said):
    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.own_process  # greenlets that other tests left behind write their ends to stderr as well
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "127.0.0.1:80"], "not the address"),
        (["--url", "http://127.0.0.1:1"], "cannot be reached: Connection refused"),
        (["--url", "http://no-such-host.invalid"], "cannot be reached"),
        (["--url", "http://x", "--versus", "http://x"], "set --name"),
        (["--url", "http://x", "--clients", "999999"], "open files"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda *arguments: None)
    monkeypatch.setattr("sys.argv", ["corosrv", "bench", *arguments])

    with pytest.raises(SystemExit) as exit:
        cli.main()

    assert exit.value.code == 1
    said_on_stderr = capsys.readouterr().err
    assert said in said_on_stderr
    assert said_on_stderr.count("\n") == 1


def test_a_key_may_come_from_a_variable_of_its_own(monkeypatch):
    """Not from another server's, which is none of this one's business."""
    monkeypatch.setenv("OPENAI_API_KEY", "another's")
    monkeypatch.setenv("BENCH_API_KEY", "secret")

    with bench.make_context("bench", ["--url", "http://x"]) as context:
        assert context.params["api_key"] == "secret"


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--prompts", __file__], "line 1"), (["--against", "nowhere.json"], "not there")]
)
def test_files_that_are_of_no_use_are_known_before_the_load(arguments, said):
    result = run("--url", "http://127.0.0.1:1", *arguments)

    assert result.exit_code == 1
    assert said in str(result.exception) + result.output


@pytest.mark.parametrize("key", [["--api-key", "secret"], ["--api-key=secret"]])
def test_a_key_is_not_in_the_command_that_is_shown(key, monkeypatch):
    from corosrv.client.bench.command import command_line

    monkeypatch.setattr("sys.argv", ["/usr/bin/corosrv", "bench", *key, "--url", "http://x y"])

    assert "secret" not in command_line()
    assert command_line().startswith("corosrv bench --api-key")
    assert command_line().endswith("--url 'http://x y'")
