"""Measures formats of weights beside llama-server, for `make bench`, or `python -m benchmarks.formats --formats Q8_0`.

The packaged model is written in each format; two decoders of random weights in Q4_K_M follow, the second of them a
mixture of experts. Both servers get the same file, and the same load in turn. Writes formats.json, formats.md and a
plot for each number of clients. Formats that formats.json has from the same machine under the same load stay there
unless they are measured again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks import servers
from benchmarks.servers import Setup
from benchmarks.side_by_side import FOLDER, N_CORES, bench, build_peer
from corosrv.client.bench import plots, words
from corosrv.client.bench.report import Machine, PointFigures, Section, look
from corosrv.contracts.settings.model_list import packaged_model
from tests.support.architectures import quantize
from tests.support.random_model import MIXTURE, DecoderShape, write_random_model

FORMATS = ("Q4_0", "Q4_1", "IQ4_NL", "Q4_K_M", "Q5_0", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16")
RANDOM = {"1.1B": DecoderShape(), "mixture": MIXTURE}  # random weights in Q4_K_M
SLOTS, CONTEXT = 32, 512  # a slot's tokens
TOKENS = 64  # of an answer


class FormatFigures(msgspec.Struct):
    """The figures of one file of weights."""

    name: str
    bytes: int  # of the file
    section: Section


class FormatResults(msgspec.Struct):
    """The content of formats.json."""

    machine: Machine
    servers: list[str]  # the commands that started both, with the last file
    formats: list[FormatFigures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="*", default=FORMATS, help="libllama's names of them")
    parser.add_argument("--no-random", action="store_true", help="leave out the models of random weights")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=N_CORES)
    parser.add_argument("--peer", type=Path, help="folder of llama-server [built by peer.sh]")
    parser.add_argument("--out", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    options = ["--mix", "short", "--clients", chosen.clients, "--tokens", str(TOKENS), "--rounds", str(chosen.rounds)]
    setup = Setup("", chosen.threads, SLOTS, CONTEXT)
    results = measure(
        chosen.peer or build_peer(), setup, options, chosen.formats, with_random_models=not chosen.no_random
    )
    print(markdown(write(results, chosen.out)))


def measure(
    programs: Path, setup: Setup, options: Sequence[str], formats: Sequence[str], *, with_random_models: bool
) -> FormatResults:
    """Measures one file after the other, and removes each before the next is written."""
    results = FormatResults(look(), [], [])
    for name, model in _models(formats, with_random_models):
        used = replace(setup, model=str(model))
        with servers.corosrv(used) as ours, servers.llama_server(programs, used) as theirs:
            print(f"{name}: {model.stat().st_size / 1e6:.0f} MB", file=sys.stderr)
            section = bench(ours, theirs, options)
        for server in (server for point in section.points for server in point.servers):
            server.ttft_curve = server.itl_curve = []  # nobody draws them, and they are most of the file
        results.servers = [ours.command, theirs.command]
        results.formats.append(FormatFigures(name, model.stat().st_size, section))
    return results


def _models(formats: Sequence[str], with_random_models: bool) -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        for name in formats:
            (model,) = quantize(Path(packaged_model()), Path(folder), [name]).values()
            yield name, model
            model.unlink()
        for name, shape in RANDOM.items() if with_random_models else ():
            model = write_random_model(Path(folder) / f"random-{name}.Q4_K_M.gguf", shape)
            yield name, model
            model.unlink()


def write(results: FormatResults, folder: Path) -> FormatResults:
    """Writes the results; returns them with those that were there before and stay."""
    folder.mkdir(parents=True, exist_ok=True)
    results = replace_measured(results, folder / "formats.json")
    (folder / "formats.json").write_bytes(msgspec.json.encode(results) + b"\n")
    (folder / "formats.md").write_text(markdown(results), "utf-8")
    for i, point in enumerate(results.formats[0].section.points):
        (folder / f"formats-{point.clients}.svg").write_text(_plot(results, i), "utf-8")
    return results


def replace_measured(results: FormatResults, earlier: Path) -> FormatResults:
    """Returns the results in the file with these in place of theirs; these alone where a comparison would mislead."""
    try:
        before = msgspec.json.decode(earlier.read_bytes(), type=FormatResults)
    except (FileNotFoundError, msgspec.DecodeError):
        return results
    if _load(before) != _load(results):
        return results
    measured = {each.name: each for each in results.formats}
    kept = [measured.pop(each.name, each) for each in before.formats]
    return FormatResults(results.machine, results.servers, [*kept, *measured.values()])


def _load(results: FormatResults) -> tuple[str, int, str, str]:
    machine = results.machine
    return machine.processor, machine.cores, machine.libllama, results.formats[0].section.command


def markdown(results: FormatResults) -> str:
    first = results.formats[0].section
    heads = ["weights", "MB", *(point.label for point in first.points)]
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    for each in results.formats:
        cells = [each.name, f"{each.bytes / 1e6:.0f}", *(_cell(point) for point in each.section.points)]
        lines.append("| " + " | ".join(cells) + " |")
    said = (
        "How many times as many tokens a second as llama-server, and those of both; 1.1B and mixture: random weights "
        "in Q4_K_M, of which the mixture uses 4 of 32 experts. "
        f"Medians of {words.count(first.rounds, 'round')}. "
        f"{words.machine(results.machine)}. {words.doubts(results.machine)}".strip()
    )
    commands = "\n".join(f"    {command}" for command in [*results.servers, first.command])
    return "\n".join(lines) + f"\n\n{said}\n\n{commands}\n"


def _cell(point: PointFigures) -> str:
    ours, theirs = (words.number(server.tokens_per_s) for server in point.servers)
    return f"{words.ratio(_ratio(point))} ({ours} : {theirs})"


def _ratio(point: PointFigures) -> float | None:
    return point.ratio(lambda server: server.tokens_per_s)


def _plot(results: FormatResults, i: int) -> str:
    """Draws the tokens a second of each format at the i-th number of clients."""
    points = [each.section.points[i] for each in results.formats]
    groups = [
        plots.Group(
            each.name,
            words.times(_ratio(point)),
            tuple(plots.Bar(server.tokens_per_s, *server.spread) for server in point.servers),
        )
        for each, point in zip(results.formats, points, strict=True)
    ]
    names = [server.name for server in points[0].servers]
    return plots.bars("Tokens a second by the format of the weights", points[0].label, names, groups)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the servers are ended by then
        sys.exit(130)
