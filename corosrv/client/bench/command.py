"""The command line of `corosrv bench`."""

from __future__ import annotations

import json
import resource
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from corosrv.base.errors import BenchError
from corosrv.client.bench.plan import BenchPlan, Dialogue, LatencyLimits, Mix, Point, read_dialogues, read_trace

RATE_OF_ARRIVALS = 1.0  # long prompts a second, unless --rate is given
SPARE_DESCRIPTORS = 100
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


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
@click.option("--mix", type=click.Choice(["short", "long", "shared", "arrivals"]), default="short", show_default=True,
              help="short: short chats, each its own; long: prompts of 1,500 tokens; shared: one system prompt of 400 "
              "tokens for all; arrivals: running streams while prompts of 1,500 tokens arrive")  # fmt: skip
@click.option(
    "--clients", type=Numbers(int), help="concurrent clients; several numbers make a sweep  [1,8,32; arrivals: 16]"
)
@click.option("--rate", type=Numbers(float),
              help="requests a second that arrive at random, instead of clients that wait for answers; in the mix "
              "arrivals, long prompts a second  [1]")  # fmt: skip
@click.option("--prompts", type=_FILE, help="ask what a file says: JSON lines, each a text, an object with `prompt`, "
              "or one with `messages`, whose turns of the user are asked one after another")  # fmt: skip
@click.option("--turns", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="turns of each conversation, each with the answers before it; of --prompts, at most")  # fmt: skip
@click.option("--trace", type=_FILE, help="send requests when a trace says, in its sizes: JSON lines with `timestamp` "
              "(ms), `input_length` and `output_length`; --rate stretches its times")  # fmt: skip
@click.option("--ttft-limit", type=click.FloatRange(0.001), help="milliseconds to the first token: requests that keep "
              "this limit and the next one are counted")  # fmt: skip
@click.option("--itl-limit", type=click.FloatRange(0.001), help="milliseconds between tokens, in a request's mean")
@click.option("--goodput", is_flag=True, help="look for the highest rate at which 99 % of requests keep the limits, "
              "from --rate on  [1]")  # fmt: skip
@click.option("--requests", "-n", type=click.IntRange(1, 10_000_000),
              help="requests of one round, all clients together  [one for each client, at least 8]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), help="rounds that count  [5; goodput: 1]")
@click.option("--warmup", type=click.IntRange(0, 1000), help="rounds before those that count  [1; goodput: 0]")
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
@click.option("--save", is_flag=True, help="keep the figures, for --against LAST")
@click.option("--against", metavar="LAST|FILE", help="compare with the last figures that were saved of the same load, "
              "or with a file of --json; status 2 where any is worse by more than chance")  # fmt: skip
@click.option("--svg", "svg_folder", type=click.Path(file_okay=False, path_type=Path), help="folder for the plots")
def bench(
    json_file: Path | None,
    html_file: Path | None,
    svg_folder: Path | None,
    save: bool,
    against: str | None,
    **options: Any,
) -> None:
    """Put a load on a server, or on two in turn, and report tokens a second, TTFT and ITL.

    Ends with status 1 when a request failed, but for --goodput, and with 2 when a figure is worse than --against says.
    """
    from corosrv.client.bench import history
    from corosrv.client.bench.compare import Comparison, Progress, find_model
    from corosrv.client.bench.report import Report, look
    from corosrv.client.bench.target import parse

    plan = plan_of(options)
    if against not in (None, history.LAST) and not Path(against).exists():  # known before a load of minutes
        raise BenchError(f"{against} is not there: --against takes {history.LAST}, or a file of --json")
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
    before = None if against is None else history.find(against, section)
    _write(report, json_file, html_file, svg_folder, save)
    _show(report)
    if isinstance(before, Report):
        click.echo("\n" + "\n".join(history.lines(section, before, report)))
    elif before:
        raise BenchError(before)
    if section.is_interrupted:
        sys.exit(130)
    if section.failed and not plan.finds_goodput:  # which goes beyond what a server can do
        sys.exit(1)
    sys.exit(2 if isinstance(before, Report) and history.is_worse(section, before) else 0)


def plan_of(options: dict[str, Any]) -> BenchPlan:
    """Makes the plan from the options. Raises UsageError for options that contradict each other."""
    _check(options)
    mix, rates, prompts, trace = Mix(options["mix"]), options["rate"], options["prompts"], options["trace"]
    limits = LatencyLimits((options["ttft_limit"] or 0) / 1000, (options["itl_limit"] or 0) / 1000)
    timeout = options["timeout"]
    if options["goodput"] and limits.ttft and limits.itl:  # what takes longer has missed them
        timeout = min(timeout, 1.0 + limits.ttft + limits.itl * options["tokens"])
    if options["goodput"]:
        points: tuple[Point, ...] = (Point(rate=(rates or (1.0,))[0]),)
    else:
        points = (Point(),) if trace else _points(mix, options["clients"], rates)
    return BenchPlan(
        mix=Mix.FILE if prompts else Mix.TRACE if trace else mix,
        points=points,
        turns=options["turns"],
        dialogues=_single(read_dialogues(prompts), bool(rates or options["goodput"])) if prompts else (),
        trace=read_trace(trace, (rates or (0.0,))[0]) if trace else (),
        limits=limits,
        finds_goodput=options["goodput"],
        rounds=options["rounds"] or (1 if options["goodput"] else 5),
        warmup=int(not options["goodput"]) if options["warmup"] is None else options["warmup"],
        requests=options["requests"],
        tokens=options["tokens"],
        temperature=options["temperature"],
        seed=options["seed"],
        is_chat=options["chat"],
        is_forced=options["force"],
        timeout=timeout,
        processes=options["processes"],
        extra=options["extra"],
    )


def _check(options: dict[str, Any]) -> None:
    """Raises UsageError for options that contradict each other."""
    mix, rates, prompts, trace = Mix(options["mix"]), options["rate"], options["prompts"], options["trace"]
    has_limit = options["ttft_limit"] or options["itl_limit"]
    if mix is Mix.ARRIVALS and options["processes"] > 1:
        raise click.UsageError("--mix arrivals runs in one process: leave out --processes")
    if (prompts or trace) and (mix is not Mix.SHORT or (prompts and trace)):
        raise click.UsageError("one of --mix, --prompts and --trace says what is asked")
    if trace and (options["clients"] or (rates and len(rates) > 1) or options["goodput"]):
        raise click.UsageError(
            "a trace says when requests come: leave out --clients and --goodput, and give one --rate"
        )
    if options["turns"] > 1 and (rates or trace or mix is Mix.ARRIVALS or not options["chat"]):
        raise click.UsageError(
            "--turns is for clients that chat: leave out --rate, --trace, arrivals and --completions"
        )
    if options["goodput"] and (not has_limit or options["clients"] or mix is Mix.ARRIVALS):
        raise click.UsageError("--goodput wants --ttft-limit or --itl-limit, and no --clients and arrivals")


def _single(dialogues: tuple[Dialogue, ...], has_rate: bool) -> tuple[Dialogue, ...]:
    """Leaves the first turn of each where requests come at a rate, and wait for no answer."""
    return tuple(replace(dialogue, turns=dialogue.turns[:1]) for dialogue in dialogues) if has_rate else dialogues


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


def _write(
    report: Any, json_file: Path | None, html_file: Path | None, svg_folder: Path | None, is_saved: bool
) -> None:
    from corosrv.client.bench import history, page, plots
    from corosrv.client.bench.report import write

    try:
        if json_file is not None:
            write(report, json_file)
        if is_saved:
            click.echo(f"saved as {history.save(report)}", err=True)
        if html_file is not None:
            earlier = [*history.saved(), *([] if is_saved else [report])]
            html_file.write_text(page.page(report, head=history.drawing(report.sections[0], earlier)), "utf-8")
        if svg_folder is not None:
            svg_folder.mkdir(parents=True, exist_ok=True)
            for name, plot in plots.plots(report).items():
                (svg_folder / f"{name}.svg").write_text(plot, "utf-8")
    except OSError as error:
        raise BenchError(f"{error.filename} cannot be written: {error.strerror}") from None


def _show(report: Any) -> None:
    from corosrv.client.bench import words
    from corosrv.client.bench import words as table

    click.echo(words.machine(report.machine))
    if doubt := words.doubts(report.machine):
        click.echo(doubt)
    for section in report.sections:
        click.echo(section.command + "\n")
        click.echo(table.text(section), nl=False)
