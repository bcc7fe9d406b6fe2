"""corosrv and llama-server side by side, and libllama alone: `make bench`, or `python -m benchmarks.side_by_side`.

Both servers run at once on the same model, threads, slots and context; only one is loaded at a time, in turn. Writes
results.json, results.html, results.md and the plots into the folder of this file.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks import limit, servers, summary
from benchmarks.limit import Limit
from benchmarks.servers import Running, Setup
from corosrv.client.bench import page, plots, report
from corosrv.client.bench.report import Section, look
from corosrv.contracts.settings.model_list import packaged_model

FOLDER = Path(__file__).parent
N_CORES = len(os.sched_getaffinity(0))
BATCHES = (1, 8, 32)  # of llama-batched-bench


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it may take."""

    rounds: int
    clients: tuple[int, ...] = (1, 8, 32, 100)
    tokens: int = 64
    arriving: int = 8  # long prompts of a round
    running_tokens: int = 128  # of the streams that run meanwhile


QUICK = Effort(rounds=1, clients=(1, 8, 32), tokens=32, arriving=3, running_tokens=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="that count [5; quick: 1]")
    parser.add_argument("--quick", action="store_true", help="a first look: less of everything")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--threads", type=int, default=N_CORES)
    parser.add_argument("--context", type=int, default=2048, help="tokens of a slot")
    parser.add_argument("--model", help="path of a GGUF [the packaged one]")
    parser.add_argument("--peer", type=Path, help="folder of llama-server and llama-batched-bench [built by peer.sh]")
    parser.add_argument("--out", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else Effort(rounds=5)
    effort = replace(effort, rounds=chosen.rounds or effort.rounds)
    setup = Setup(chosen.model or packaged_model(), chosen.threads, chosen.slots, chosen.context)
    results = measure(chosen.peer or build_peer(), setup, effort)
    write(results, chosen.out)
    print(summary.markdown(results))


def measure(programs: Path, setup: Setup, effort: Effort) -> summary.Results:
    machine = look()
    with servers.corosrv(setup) as ours, servers.llama_server(programs, setup) as theirs:
        sections = [bench(ours, theirs, options) for options in _sets(effort)]
        limits = list(_limits(programs, setup, effort, sections[0]))
    return summary.Results(machine, sections, [ours.command, theirs.command], limits)


def write(results: summary.Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    (folder / "results.md").write_text(summary.markdown(results), "utf-8")
    (folder / "results.html").write_text(page.page(results, head=summary.html(results)), "utf-8")
    for name, plot in plots.plots(results).items():
        (folder / f"{name}.svg").write_text(plot, "utf-8")


def _sets(effort: Effort) -> list[list[str]]:
    """The options of each set of loads."""
    rounds = ["--rounds", str(effort.rounds)]
    clients = ",".join(map(str, effort.clients))
    return [
        ["--mix", "short", "--clients", clients, "--tokens", str(effort.tokens), *rounds],
        ["--mix", "shared", "--clients", "32", "--tokens", "32", *rounds],
        ["--mix", "arrivals", "--clients", "16", "--requests", str(effort.arriving), "--tokens",
         str(effort.running_tokens), *rounds],
    ]  # fmt: skip


def bench(ours: Running, theirs: Running, options: Sequence[str]) -> Section:
    """One `corosrv bench`, by its command line, so that the command in the report is what anybody can type."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        pair = ["--url", ours.url, "--versus", theirs.url, "--name", ours.name, "--versus-name", theirs.name]
        command = [sys.executable, "-m", "corosrv", "bench", *pair, *options, "--json", str(file)]
        ended = subprocess.run(command, stdout=sys.stderr, check=False)
        if ended.returncode != 0:
            raise SystemExit(f"corosrv bench ended with status {ended.returncode}")
        (section,) = report.read(file).sections
    section.command = shlex.join(["corosrv", "bench", "--url", "URL", "--versus", "LLAMA_SERVER_URL", *options])
    return section


def _limits(programs: Path, setup: Setup, effort: Effort, section: Section) -> list[Limit]:
    """libllama alone at the batches that were served, with prompts as long as theirs."""
    found = []
    for point in section.points:
        if point.clients in BATCHES:
            prompt = point.servers[1].median(lambda one: one.prompt_tokens) or 1.0
            found.append(limit.measure(programs, setup, point.clients, round(prompt), effort.tokens, effort.rounds))
            print(f"llama-batched-bench at {point.clients}: {found[-1].median:.0f} tokens/s", file=sys.stderr)
    return found


def build_peer() -> Path:
    """Builds llama-server where that was not done yet, and returns its folder."""
    command = ["sh", str(FOLDER / "peer.sh")]
    environ = os.environ | {"VENV": sys.prefix}
    return Path(subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the servers are ended by then
        sys.exit(130)
