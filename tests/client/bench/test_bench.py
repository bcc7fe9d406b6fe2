"""The whole command, against real servers and against bad ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.client.bench.handmade import serving
from tests.client.bench.streams import DONE, HEAD, delta, error, usage, whole
from tests.support.certificates import self_signed
from tests.support.waiting import eventually

DEADLINE = 60.0  # seconds


class Run:
    """`corosrv bench` in a process of its own, with a report in JSON."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self._file = folder / "report.json"
        command = [sys.executable, "-m", "corosrv", "bench", *arguments, "--json", str(self._file)]
        self._process = subprocess.Popen(
            command, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> Run:
        try:
            self.out, self.err = self._process.communicate(timeout=DEADLINE)
        finally:
            self._process.kill()
            self._process.communicate()
        return self

    @property
    def status(self) -> int:
        return self._process.returncode

    @property
    def section(self) -> dict[str, Any]:
        (section,) = json.loads(self._file.read_text())["sections"]
        return section

    @property
    def servers(self) -> list[dict[str, Any]]:
        """Those of the only point."""
        (point,) = self.section["points"]
        return point["servers"]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Those of the only server."""
        (server,) = self.servers
        return server["rounds"]


def run(folder: Path, *arguments: str, **environ: str) -> Run:
    return Run(folder, *arguments, **environ).wait()


def one_round(folder: Path, url: str, *arguments: str, **environ: str) -> Run:
    return run(folder, "--url", url, "--rounds", "1", "--warmup", "0", *arguments, **environ)


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_a_real_server_is_measured(fast, tmp_path):
    seen = run(tmp_path, "--url", address(fast), "--clients", "4", "--rounds", "2", "--tokens", "20")

    assert seen.status == 0, seen.err
    assert "4 clients (8 requests)" in seen.out
    for one in seen.rounds:
        assert (one["requests"], one["tokens"], one["failures"], one["counted_by"]) == (8, 160, {}, "usage")
        assert one["itl"]["n"] <= 8 * 19
        assert one["ttft"]["n"] == one["total"]["n"] == 8
        assert one["cpu"]["us_per_event"] > 0
    assert len(seen.rounds) == 2
    assert seen.err == ""


def test_two_servers_are_compared(fast, other, tmp_path):
    pair = "--url", address(fast), "--versus", address(other), "--name", "quick", "--versus-name", "slow"
    files = "--html", str(tmp_path / "report.html"), "--svg", str(tmp_path / "plots")
    seen = run(tmp_path, *pair, "--clients", "2,4", "--rounds", "3", "--tokens", "30", *files)

    assert seen.status == 0, seen.err
    for point in seen.section["points"]:
        quick, slow = ([one["tokens_per_s"] for one in server["rounds"]] for server in point["servers"])
        assert len(quick) == len(slow) == 3
        assert statistics.median(quick) > statistics.median(slow)
    assert "quick" in (tmp_path / "report.html").read_text()
    plots = {plot.name: ElementTree.parse(plot) for plot in (tmp_path / "plots").iterdir()}
    assert set(plots) == {"short-tokens.svg", "short-ttft.svg", "short-itl.svg"}


def test_the_report_says_where_and_how_it_was_made(fast, tmp_path):
    one_round(tmp_path, address(fast), "--clients", "1", "-n", "1", "--tokens", "2")

    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert report["sections"][0]["command"].startswith(f"corosrv bench --url {address(fast)} --rounds 1")


def test_requests_arrive_at_random_at_the_rate(handmade, tmp_path):
    seen = one_round(tmp_path, handmade.url, "--rate", "50", "-n", "20", "--tokens", "4")

    (one,) = seen.rounds
    assert (seen.status, one["requests"]) == (0, 20)
    assert one["seconds"] > 0.15  # 0.4 on average


@pytest.mark.parametrize("mix", ["short", "long", "shared"])
@pytest.mark.parametrize("api", ["--chat", "--completions"])
def test_every_mix_is_answered_by_both_apis(fast, tmp_path, mix, api):
    seen = one_round(tmp_path, address(fast), "--mix", mix, api, "--clients", "2", "-n", "2", "--tokens", "3")

    assert seen.status == 0, seen.out
    assert seen.rounds[0]["tokens"] == 6


def test_long_prompts_arrive_among_running_streams(fast, tmp_path):
    seen = one_round(
        tmp_path, address(fast), "--mix", "arrivals", "--clients", "3", "--rate", "20", "-n", "4", "--tokens", "40"
    )

    (one,) = seen.rounds
    assert seen.status == 0, seen.out
    assert one["arriving_ttft"]["n"] == 4
    assert one["ttft"]["n"] >= 3
    assert one["requests"] >= 7


@pytest.mark.parametrize("clients", ["4", "1"])
def test_several_processes_make_one_load(fast, tmp_path, clients):
    arguments = "-n", "9", "--tokens", "20", "--processes", "3"
    seen = one_round(tmp_path, address(fast), "--clients", clients, *arguments)

    assert seen.status == 0, seen.out + seen.err
    assert (seen.rounds[0]["requests"], seen.rounds[0]["tokens"]) == (9, 180)


def test_two_servers_are_asked_the_same_and_never_the_same_twice(handmade, tmp_path):
    with serving() as second:
        pair = "--url", handmade.url, "--versus", second.url
        seen = run(tmp_path, *pair, "--clients", "2", "-n", "3", "--rounds", "2", "--warmup", "1", "--tokens", "4")

        assert seen.status == 0, seen.out
        ours, theirs = (sorted(json.dumps(body) for body in server.bodies) for server in (handmade, second))
    assert ours == theirs
    assert len(set(ours)) == 9


def test_model_key_and_more_members_are_sent(handmade, tmp_path):
    arguments = "--clients", "1", "-n", "1", "--tokens", "4", "--api-key", "secret", "--extra", '{"top_k": 3}'
    one_round(tmp_path, handmade.url, *arguments)

    assert handmade.bodies[0]["model"] == "hand-made"
    assert handmade.bodies[0]["top_k"] == 3
    assert all(b"\r\nAuthorization: Bearer secret" in head for head in handmade.heads)
    assert "secret" not in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (error(500, "out of memory"), "HTTP 500"),
        (b"", "connection"),
        (HEAD + delta("a") + DONE, "no finish reason"),
        (HEAD + delta("a") + delta(finish="length") + usage(1) + DONE, "too few tokens"),
        (HEAD + b"data: {oops\n\n", "malformed answer"),
    ],
)
def test_what_goes_wrong_is_counted_by_its_kind(handmade, tmp_path, answer, label):
    handmade.answer = answer

    seen = one_round(tmp_path, handmade.url, "--clients", "2", "-n", "3", "--tokens", "4")

    assert seen.status == 1
    assert seen.rounds[0]["failures"] == {label: 3}
    assert f"3 ({3} {label}" in seen.out


def test_no_more_requests_are_open_than_clients(handmade, tmp_path):
    seen = one_round(tmp_path, handmade.url, "--clients", "3", "-n", "40", "--tokens", "4")

    assert (seen.status, len(handmade.bodies)) == (0, 40)
    assert 1 <= handmade.n_open_most <= 3


def test_running_streams_that_fail_hold_nobody_up(handmade, tmp_path):
    handmade.answer = error(500, "no")

    seen = one_round(tmp_path, handmade.url, "--mix", "arrivals", "--clients", "2", "--rate", "50", "-n", "3")

    assert (seen.status, seen.rounds[0]["failures"]) == (1, {"HTTP 500": 5})


def test_a_stream_that_never_ends_is_given_up(handmade, tmp_path):
    handmade.answer, handmade.is_held = HEAD + delta("a"), True

    seen = one_round(tmp_path, handmade.url, "--clients", "2", "-n", "2", "--tokens", "4", "--timeout", "0.3")

    assert (seen.status, seen.rounds[0]["failures"]) == (1, {"timeout": 2})


def test_a_server_that_dies_fails_its_requests_and_no_more(dying, tmp_path):
    running = Run(tmp_path, "--url", address(dying), "--clients", "4", "-n", "4", "--rounds", "1", "--warmup", "0")
    dying.wait_metric("running", 4, within=DEADLINE)
    dying.stop()
    running.wait()

    assert running.status == 1
    assert running.rounds[0]["failures"] == {"connection": 4}
    assert "Traceback" not in running.err


def test_an_interrupt_prints_what_there_is(handmade, tmp_path):
    """One request of two is answered, the other hangs."""
    handmade.is_held = True
    handmade.answer = HEAD + delta("a")
    running = Run(tmp_path, "--url", handmade.url, "--clients", "1", "--warmup", "0")
    assert handmade.asked.wait(DEADLINE)
    running.interrupt()
    running.wait()

    assert running.status == 130
    assert running.section["is_interrupted"]
    assert "Interrupted" in running.out
    assert "Traceback" not in running.err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupt_keeps_what_was_answered(fast, tmp_path, processes):
    before = fast.metric('jobs_total{outcome="length"}')
    running = Run(tmp_path, "--url", address(fast), "--clients", "2", "-n", "5000", "--tokens", "5", "--warmup", "0",
                  "--processes", processes)  # fmt: skip
    eventually(lambda: fast.metric('jobs_total{outcome="length"}') > before + 10, DEADLINE)
    running.interrupt()
    running.wait()

    assert running.status == 130, running.err
    assert "Traceback" not in running.err
    (one,) = running.rounds
    assert one["requests"] >= 5
    assert one["failures"] == {}


@pytest.mark.parametrize("models", [b"{}", b'{"data": []}', b"hello"])
def test_a_server_without_models_asks_for_a_name(handmade, tmp_path, models):
    handmade.models = models

    seen = one_round(tmp_path, handmade.url)

    assert seen.status == 1
    assert seen.err.startswith("corosrv: ")
    assert seen.err.count("\n") == 1
    assert one_round(tmp_path, handmade.url, "--model", "m", "--clients", "1", "--tokens", "4").status == 0


def test_tls_is_spoken(tmp_path):
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    context, certificate = self_signed(tmp_path, openssl)
    with serving(context) as server:
        arguments = "--clients", "2", "-n", "4", "--tokens", "4"
        trusted = one_round(tmp_path, server.url, *arguments, SSL_CERT_FILE=str(certificate))
        assert trusted.status == 0, trusted.out + trusted.err
        assert trusted.rounds[0]["tokens"] == 16
        assert "certificate" in one_round(tmp_path, server.url, *arguments).err


def test_a_file_that_cannot_be_written_is_one_sentence(handmade, tmp_path):
    arguments = "--clients", "1", "-n", "1", "--tokens", "4", "--html", "/no/such/folder/report.html"
    seen = one_round(tmp_path, handmade.url, *arguments)

    assert seen.status == 1
    assert seen.err.count("\n") == 1


def test_whole_streams_have_whole_tokens(handmade, tmp_path):
    handmade.answer = whole(tokens=6)

    (one,) = one_round(tmp_path, handmade.url, "--clients", "2", "-n", "2", "--tokens", "6").rounds

    assert (one["tokens"], one["prompt_tokens"]) == (12, 9.0)


def test_a_report_names_a_model_without_its_folders(tmp_path, fast):
    options = ("--clients", "1", "-n", "1", "--tokens", "2", "--model", "/models/small.gguf")
    done = one_round(tmp_path, address(fast), *options)

    (server,) = done.servers
    assert server["model"] == "small.gguf"


def test_the_goodput_is_found_between_what_is_kept_and_what_is_missed(fast, tmp_path):
    limits = "--ttft-limit", "2000", "--itl-limit", "1000"
    seen = run(tmp_path, "--url", address(fast), "--goodput", "--rate", "400", "-n", "40", "--tokens", "20", *limits)
    tried = {point["rate"]: point["servers"][0]["rounds"][0] for point in seen.section["points"]}
    (goodput,) = seen.section["goodput"].values()

    assert seen.status == 0, seen.err
    assert tried[goodput]["in_limits"] == 40
    assert min((rate for rate, one in tried.items() if one["in_limits"] < 40), default=goodput) >= goodput
    assert f"Goodput of 127.0.0.1:{fast.port}: " in seen.out


def test_figures_are_kept_and_compared(fast, tmp_path):
    load = "--url", address(fast), "--clients", "2", "--rounds", "2", "--warmup", "0", "--tokens", "5"
    home = {"XDG_DATA_HOME": str(tmp_path)}
    first = run(tmp_path, *load, "--against", "LAST", "--save", **home)
    second = run(tmp_path, *load, "--against", "LAST", "--html", str(tmp_path / "page.html"), **home)

    assert first.status == 1
    assert "--save first" in first.err
    assert len(list((tmp_path / "corosrv" / "bench").iterdir())) == 1
    assert second.status in (0, 2), second.err
    assert "95 % intervals" in second.out
    assert "Tokens a second, run by run" in (tmp_path / "page.html").read_text()
