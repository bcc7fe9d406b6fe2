"""What `make bench` runs and writes, with stand-ins for the peer's programs, which take minutes to build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from benchmarks import formats, limit, summary
from benchmarks.limit import Limit
from benchmarks.servers import Setup, shown
from corosrv.client.bench.report import Section, look
from tests.client.bench.reports import section, server

REPOSITORY = Path(__file__).parent.parent.parent.parent
DEADLINE = 600.0  # seconds: a slow machine under load takes five times as long as others

# Takes llama-server's flags and serves a synthetic model, half as fast as ours.
LLAMA_SERVER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in --port) port=$2;; -np) slots=$2;; -c) context=$2;; esac
  shift
done
exec {python} -m corosrv serve --port "$port" --slots "$slots" --ctx $((context / slots)) \\
  --model 'synthetic:?tokens_per_s=100'
"""
BATCHED_BENCH = """#!/bin/sh
echo 'some words first'
echo '{"pl": 8, "tg": 32, "t": 2.0, "t_tg": 1.0, "speed_tg": 256.0}'
"""


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    """A folder with both programs."""
    folder = tmp_path / "corosrv-peers" / "bin"
    folder.mkdir(parents=True)
    for name, text in (("llama-server", LLAMA_SERVER), ("llama-batched-bench", BATCHED_BENCH)):
        (folder / name).write_text(text.replace("{python}", sys.executable))
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE + 60.0)
def test_both_servers_are_measured_and_all_files_written(peer, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.side_by_side", "--quick", "--context", "16384", "--out", str(out)]
    model = "--model", "synthetic:?tokens_per_s=200", "--peer", str(peer)

    ended = subprocess.run(
        [*command, *model], cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE, check=False
    )

    assert ended.returncode == 0, ended.stderr
    results = msgspec.json.decode((out / "results.json").read_bytes(), type=summary.Results)
    assert [section.mix for section in results.sections] == ["short", "shared", "arrivals"]
    assert [limit.batch for limit in results.limits] == [1, 8, 32]
    assert ended.stdout == (out / "results.md").read_text() + "\n"
    assert "llama-batched-bench -m" in (out / "results.html").read_text()
    assert {ElementTree.parse(plot).getroot().tag for plot in out.glob("*.svg")} == {"{http://www.w3.org/2000/svg}svg"}
    assert len(list(out.glob("*.svg"))) == 9


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(DEADLINE + 60.0)
def test_a_format_is_written_and_measured_with_both_servers(peer, tmp_path):
    command = [sys.executable, "-m", "benchmarks.formats", "--formats", "Q4_0", "--no-random", "--rounds", "1"]
    out = tmp_path / "out"

    ended = subprocess.run(
        [*command, "--clients", "2", "--peer", str(peer), "--out", str(out)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    found = msgspec.json.decode((out / "formats.json").read_bytes(), type=formats.FormatResults)
    assert [each.name for each in found.formats] == ["Q4_0"]
    assert found.formats[0].bytes > 80e6
    assert "Q4_0.gguf --threads" in found.servers[0]
    assert "Q4_0.gguf -t" in found.servers[1]
    assert ended.stdout == (out / "formats.md").read_text() + "\n"
    assert [plot.name for plot in out.glob("*.svg")] == ["formats-2.svg"]


def test_the_table_of_formats_tells_how_many_times_as_many_tokens():
    measured = section(server("corosrv", 20.0), server("llama-server", 10.0), clients=(2, 8), mix="short")
    files = [formats.FormatFigures(name, 10**8, measured) for name in ("Q4_0", "Q8_0")]

    text = formats.markdown(formats.FormatResults(look(), ["corosrv serve", "llama-server"], files))

    assert text.startswith("| weights | MB | 2 clients | 8 clients |\n")
    assert "| Q8_0 | 100 | 2.00 (145 : 72.7) | 2.00 (145 : 72.7) |\n" in text


def test_formats_that_are_not_measured_again_stay_unless_the_load_was_another(tmp_path):
    def measured(section: Section, *names: str) -> formats.FormatResults:
        return formats.FormatResults(look(), ["a", "b"], [formats.FormatFigures(name, 1, section) for name in names])

    before = section(server("corosrv", 10.0), server("llama-server", 10.0), clients=(8,), mix="short")
    again = section(server("corosrv", 20.0), server("llama-server", 10.0), clients=(8,), mix="short")
    other = replace(again, command="corosrv bench --clients 3")

    formats.write(measured(before, "Q4_0", "F16", "Q8_0"), tmp_path)
    after = formats.write(measured(again, "BF16", "F16"), tmp_path)

    found = [(each.name, each.section) for each in after.formats]
    assert found == [("Q4_0", before), ("F16", again), ("Q8_0", before), ("BF16", again)]
    assert msgspec.json.decode((tmp_path / "formats.json").read_bytes(), type=formats.FormatResults) == after
    assert [each.name for each in formats.write(measured(other, "F16"), tmp_path).formats] == ["F16"]


def results() -> summary.Results:
    """corosrv twice as fast as the other in everything, at half of the limit."""
    servers = server("corosrv", 20.0), server("other", 10.0)
    sections = [section(*servers, clients=(8,), mix=mix) for mix in ("short", "shared", "arrivals")]
    limits = [Limit(8, 24, 10, "llama-batched-bench", [250.0, 290.9, 300.0], [1.0])]
    return summary.Results(look(), sections, ["corosrv serve", "llama-server"], limits)


def test_rows_tell_how_many_times_better():
    short, shared, arrivals = summary.rows(results())

    assert (short.ours, short.theirs) == ("145", "72.7")
    assert (shared.ours, shared.theirs) == ("0.55", "1.10")
    assert (arrivals.ours, arrivals.theirs) == ("50.0", "100")
    assert [row.factor for row in (short, shared, arrivals)] == pytest.approx([2, 2, 2])


def test_only_tokens_a_second_have_a_limit():
    short, shared, arrivals = summary.rows(results())

    assert short.share == pytest.approx(0.5, rel=0.01)
    assert (shared.share, arrivals.share) == (None, None)


def test_the_table_carries_its_commands():
    text = summary.markdown(results())

    assert text.startswith("| work | corosrv | llama-server |")
    assert "| 8 clients: tokens/s | 145 | 72.7 | 2.00 | 50 % |" in text
    for command in ("corosrv serve", "llama-server", "corosrv bench --url URL", "llama-batched-bench"):
        assert f"\n    {command}\n" in text


def test_the_limit_is_the_speed_with_the_prompts(peer):
    seen = limit.measure(peer, Setup("model.gguf", 2, 32, 2048), batch=8, prompt_tokens=24, tokens=32, runs=3)

    assert (seen.tokens_per_s, seen.decode_tokens_per_s) == ([128.0] * 3, [256.0] * 3)
    assert seen.command.startswith("llama-batched-bench -m model.gguf -c 65536 -t 2 -npp 24 -ntg 32 -npl 8")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/a/bin/llama-server", "-m", "/b/c.gguf"], "llama-server -m c.gguf"),
        (["/a/bin/python", "-m", "corosrv", "serve"], "corosrv serve"),
    ],
)
def test_commands_are_shown_as_others_would_type_them(command, said):
    assert shown(command) == said


def test_a_peer_that_is_built_is_not_built_again(peer, tmp_path):
    version = (REPOSITORY / "native" / "libllama-version").read_text().strip()
    programs = tmp_path / "corosrv-peers" / f"llama-cpp-python-{version}" / "build" / "bin"
    programs.parent.mkdir(parents=True)
    peer.rename(programs)

    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "VENV": sys.prefix}
    ended = subprocess.run(
        ["sh", str(REPOSITORY / "benchmarks" / "peer.sh")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == (f"{programs}\n", "")


def test_results_are_a_report_as_well():
    again = msgspec.json.decode(msgspec.json.encode(results()), type=summary.Results)

    assert json.loads(msgspec.json.encode(again))["limits"][0]["batch"] == 8
