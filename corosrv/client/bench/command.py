"""The command line of `corosrv bench`."""

from __future__ import annotations

import json
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from corosrv.base.errors import BenchError
from corosrv.client.bench.load.plan import BenchPlan, Mix, Point

RATE_OF_ARRIVALS = 1.0  # long prompts a second, unless --rate is given
SPARE_DESCRIPTORS = 100


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """Numbers with commas between them, each above zero."""

    name = "N,N,..."

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < 1e6 for number in numbers):
            self.fail(f"{value!r} is not a list of numbers above zero, such as 1,8,32", param, ctx)
        return numbers


class Members(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            members = json.loads(value)
        except ValueError:
            members = None
        if not isinstance(members, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return members


@click.command()
@click.option("--url", required=True, help="address of an OpenAI-compatible server, with or without /v1")
@click.option("--versus", help="address of a second server: both get the same load in turn, in alternating order")
@click.option("--name", help="name of the server in the report  [host:port]")
@click.option("--versus-name", help="name of the second server in the report  [host:port]")
@click.option("--mix", type=click.Choice([mix.value for mix in Mix]), default="short", show_default=True,
              help="short: short chats, each its own; long: prompts of 1,500 tokens; shared: one system prompt of 400 "
              "tokens for all; arrivals: running streams while prompts of 1,500 tokens arrive")  # fmt: skip
@click.option(
    "--clients", type=Numbers(int), help="concurrent clients; several numbers make a sweep  [1,8,32; arrivals: 16]"
)
@click.option("--rate", type=Numbers(float),
              help="requests a second that arrive at random, instead of clients that wait for answers; in the mix "
              "arrivals, long prompts a second  [1]")  # fmt: skip
@click.option("--requests", "-n", type=click.IntRange(1, 10_000_000),
              help="requests of one round, all clients together  [one for each client, at least 8]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="rounds that count")
@click.option(
    "--warmup", type=click.IntRange(0, 1000), default=1, show_default=True, help="rounds before those that count"
)
@click.option(
    "--tokens", type=click.IntRange(1, 1_000_000), default=64, show_default=True, help="tokens of each answer"
)
@click.option("--force/--no-force", default=True, show_default=True,
              help="ask for exactly that many tokens with ignore_eos; off for servers that refuse it")  # fmt: skip
@click.option("--chat/--completions", default=True, show_default=True, help="API to call")
@click.option("--temperature", type=click.FloatRange(0, 100), default=0.8, show_default=True)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="seed of prompts, arrivals and sampling"
)
@click.option("--model", default="", help="model to ask for  [the first that the server lists]")
@click.option("--api-key", envvar="BENCH_API_KEY", default="", help="sent as a bearer key; also BENCH_API_KEY")
@click.option("--extra", type=Members(), default="{}", help="more members for every request body")
@click.option(
    "--timeout",
    type=click.FloatRange(0.001),
    default=600.0,
    show_default=True,
    help="seconds after which a request has failed",
)
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True,
              help="processes that make the load, if one core is not enough")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="file for all figures")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="file for a page with plots")
@click.option("--svg", "svg_folder", type=click.Path(file_okay=False, path_type=Path), help="folder for the plots")
def bench(json_file: Path | None, html_file: Path | None, svg_folder: Path | None, **options: Any) -> None:
    """Put a load on a server, or on two in turn, and report tokens a second, TTFT and ITL.

    Ends with status 1 when a request failed.
    """
    from corosrv.client.bench.compare import Comparison, find_model
    from corosrv.client.bench.load.processes import Progress
    from corosrv.client.bench.load.target import parse
    from corosrv.client.bench.report.document import Report, look

    plan = plan_of(options)
    machine = look()  # before the load, which changes it
    targets = [parse(options["url"], options["name"] or "", options["model"], options["api_key"])]
    if options["versus"]:
        targets.append(parse(options["versus"], options["versus_name"] or "", options["model"], options["api_key"]))
    if len({target.name for target in targets}) < len(targets):
        raise BenchError(f"both servers have the name {targets[0].name}: set --name and --versus-name")
    raise_descriptor_limit(plan)
    command = command_line()
    section = Comparison(plan, list(map(find_model, targets)), command, Progress(sys.stderr)).run()
    report = Report(machine, [section])
    _write(report, json_file, html_file, svg_folder)
    _show(report)
    sys.exit(130 if section.is_interrupted else 1 if section.failed else 0)


def plan_of(options: dict[str, Any]) -> BenchPlan:
    """Makes the plan from the options. Raises UsageError for options that contradict each other."""
    mix = Mix(options["mix"])
    if mix is Mix.ARRIVALS and options["processes"] > 1:
        raise click.UsageError("--mix arrivals runs in one process: leave out --processes")
    return BenchPlan(
        mix=mix,
        points=_points(mix, options["clients"], options["rate"]),
        rounds=options["rounds"],
        warmup=options["warmup"],
        requests=options["requests"],
        tokens=options["tokens"],
        temperature=options["temperature"],
        seed=options["seed"],
        is_chat=options["chat"],
        is_forced=options["force"],
        timeout=options["timeout"],
        processes=options["processes"],
        extra=options["extra"],
    )


def _points(mix: Mix, clients: tuple[int, ...] | None, rates: tuple[float, ...] | None) -> tuple[Point, ...]:
    if mix is Mix.ARRIVALS:
        return tuple(Point(n, rate) for n in clients or (16,) for rate in rates or (RATE_OF_ARRIVALS,))
    if rates and clients:
        raise click.UsageError("--rate sends requests whether or not others are answered: leave out --clients")
    return tuple(Point(rate=rate) for rate in rates) if rates else tuple(Point(n) for n in clients or (1, 8, 32))


def raise_descriptor_limit(plan: BenchPlan) -> None:
    """Raises the soft limit of open files to the hard one. Raises BenchError where that is not enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n_most = max(point.clients for point in plan.points) // plan.processes
    if hard != resource.RLIM_INFINITY and n_most + SPARE_DESCRIPTORS > hard:
        raise BenchError(f"{n_most} clients need as many open files, and the limit is {hard} (ulimit -Hn)")


def command_line() -> str:
    """Returns the command as it was typed, without secrets."""
    words = ["corosrv", *sys.argv[1:]]
    for i, word in enumerate(words):
        if word == "--api-key" and i + 1 < len(words):
            words[i + 1] = "..."
        elif word.startswith("--api-key="):
            words[i] = "--api-key=..."
    return shlex.join(words)


def _write(report: Any, json_file: Path | None, html_file: Path | None, svg_folder: Path | None) -> None:
    from corosrv.client.bench.report import page, plots
    from corosrv.client.bench.report.document import write

    try:
        if json_file is not None:
            write(report, json_file)
        if html_file is not None:
            html_file.write_text(page.page(report), "utf-8")
        if svg_folder is not None:
            svg_folder.mkdir(parents=True, exist_ok=True)
            for name, plot in plots.plots(report).items():
                (svg_folder / f"{name}.svg").write_text(plot, "utf-8")
    except OSError as error:
        raise BenchError(f"{error.filename} cannot be written: {error.strerror}") from None


def _show(report: Any) -> None:
    from corosrv.client.bench.report import words
    from corosrv.client.bench.report import words as table

    click.echo(words.machine(report.machine))
    if doubt := words.doubts(report.machine):
        click.echo(doubt)
    for section in report.sections:
        click.echo(section.command + "\n")
        click.echo(table.text(section), nl=False)
