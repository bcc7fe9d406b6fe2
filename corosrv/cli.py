"""The command line: what each command does with its options."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError, HubMissing, SettingsError
from corosrv.cli_options import (
    PASSED_ON,
    PORT,
    PREDICTOR_PORT,
    CommandGroup,
    SectionedGroup,
    SectionedHelp,
    fail,
    serve_options,
    setting_options,
)
from corosrv.client.bench.command import bench
from corosrv.client.chat import chat
from corosrv.client.http import ServerAddress, blocking_connection
from corosrv.contracts import settings
from corosrv.contracts.settings import (
    PARTS,
    HubSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    effective,
    sources,
)
from corosrv.contracts.settings.effective import EffectiveSetting, SettingGroup
from corosrv.contracts.settings.fleet import new_replica_id
from corosrv.fleet.ray.commands import ray_group
from corosrv.fleet.upstreams.spec import parse_all
from corosrv.models.fitting.model_file import flaw_of
from corosrv.models.hub import library
from corosrv.models.hub.cache import stored_models
from corosrv.models.hub.commands import pull_model, remove_model
from corosrv.models.recording import fault_of_path
from corosrv.models.replay import replay
from corosrv.web.http import worker_watch
from corosrv.web.key_commands import keys
from corosrv.web.management import commands


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="corosrv")
def main() -> None:
    """A cooperative model server: one OS thread, thousands of open streams."""


for command in (
    bench,
    chat,
    keys,
    replay,
    commands.ps,
    commands.drain,
    commands.scale,
    commands.worker,
    commands.upstream,
    ray_group,
):
    main.add_command(command)


@main.command(cls=SectionedHelp)
@serve_options
@click.pass_context
def serve(
    context: click.Context,
    /,
    app: str | None,
    host: str,
    port: int | None,
    connections: int,
    is_open: bool,
    certfile: str | None,
    keyfile: str | None,
    config: Path | None,
    **overrides: Any,
) -> None:
    """Serve models, a predictor, an application, upstreams, or several of them, by gunicorn with good defaults.

    APP is an application, as MODULE:NAME or FILE.py:NAME; --worker-app is the same. Options of gunicorn stand behind
    `--`, or in GUNICORN_CMD_ARGS: corosrv serve --model FILE -- --max-requests 10000
    """
    if app is not None:
        overrides["worker_app"] = app
    hosts = [name.strip() for name in host.split(",")]
    networked = [name for name in hosts if not _is_path(name)]
    _check_certificate(certfile, keyfile)
    chosen = _load(config, overrides)
    for model in chosen.models:
        _check_files(model)
    if chosen.upstream is not None:
        parse_all(chosen.upstream.urls)
    if chosen.kserve.grpc_port is not None and not chosen.kserve.grpc_host:
        overrides["grpc_host"] = _grpc_host(networked)
    if grpc_port := chosen.kserve.grpc_port:
        grpc_host = chosen.kserve.grpc_host or _grpc_host(networked)
        if fault := worker_watch.fault(grpc_host, grpc_port):
            fail(f"{grpc_host}:{grpc_port} cannot be listened on for gRPC: {fault}; choose with --grpc-port")
    listening = [*networked, *filter(None, [chosen.kserve.grpc_host])]
    if not is_open and not chosen.server.needs_key and not all(map(_is_loopback, listening)):
        for name in listening:
            if (reason := worker_watch.unresolvable(name)) is not None:
                fail(f"no address is known for the host {name} ({reason}): correct --host, such as 127.0.0.1")
        fail(f"{host} can be reached by others: set COROSRV_API_KEYS, or add --open if everybody may use this server")
    if chosen.peer is not None and not chosen.peer.replica_id:
        overrides["replica_id"] = new_replica_id()  # here, so that all processes have the same
    workers = chosen.processes
    if chosen.predictor is not None and workers > 1:
        fail("predictions run in one process: --workers must be 1 with --predictor")
    if chosen.upstream is not None and workers > 1 and chosen.cluster is None:
        fail(
            "requests for upstreams queue in one process: --workers must be 1 with --upstream and --elastic, unless "
            "COROSRV_REDIS_URL is set, through which several share their permits"
        )
    raise_descriptor_limit(connections)
    _hand_down(config, overrides)
    if workers > 1 and chosen.server.engine == "inproc":
        click.echo(f"corosrv: {workers} worker processes, each of which loads its own copy of the model", err=True)
    port = _default_port(chosen) if port is None else port
    from corosrv.gunicorn_app import options, run

    run(
        {
            **options(chosen),
            "bind": [_bound(name, port) for name in hosts],
            "workers": workers,
            "worker_connections": connections,
            "certfile": certfile,
            "keyfile": keyfile,
        },
        context.meta.get(PASSED_ON, ()),
    )


def _is_path(host: str) -> bool:
    """Tells whether a host is the path of a Unix socket; llama-server takes one that ends with .sock."""
    return host.startswith("unix:") or host.endswith(".sock")


def _bound(host: str, port: int) -> str:
    """Returns an address in gunicorn's form."""
    if _is_path(host):
        return f"unix:{host.removeprefix('unix:')}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _grpc_host(hosts: list[str]) -> str:
    return hosts[0] if hosts else "127.0.0.1"


def _check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Ends the command where a server could not use the certificate."""
    if certfile is None:
        if keyfile is not None:
            fail("--keyfile is the key of a certificate: add --certfile")
        return
    if (problem := worker_watch.certificate_fault(certfile, keyfile)) is not None:
        fail(f"TLS cannot be spoken: {problem}")


def _default_port(served: Settings) -> int:
    """Returns the port where none is named; of a predictor that is served alone the one that Cog's server has."""
    if served.models or served.app is not None or served.upstream is not None:
        return PORT
    text = os.environ.get("PORT") or str(PREDICTOR_PORT)
    if not text.isdecimal() or int(text) > 65535:
        fail(f"PORT must be from 0 to 65535, not {text!r}")
    return int(text)


@main.command("config", cls=SectionedHelp)
@click.option("--all", "is_all", is_flag=True, help="also the settings that have their defaults")
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "toml", "json"]),
    help="toml and json: a settings file for --config, without secrets",
)
@serve_options
@click.pass_context
def show_config(
    context: click.Context,
    /,
    app: str | None,
    host: str,
    port: int | None,
    connections: int,
    is_open: bool,
    certfile: str | None,
    keyfile: str | None,
    is_all: bool,
    form: str,
    config: Path | None,
    **overrides: Any,
) -> None:
    """Show the settings that serve would have with the same options, and where each comes from."""
    if app is not None:
        overrides["worker_app"] = app
    for name in settings.unknown_variables(os.environ):
        click.echo(f"corosrv: unknown setting ignored: {settings.with_nearest(name)}", err=True)
    try:
        raw = sources.read(overrides, None, config, PARTS)
        chosen = settings.assemble(raw)
        if chosen.upstream is not None:
            parse_all(chosen.upstream.urls)
    except SettingsError as error:
        fail(str(error))
    groups = effective.effective_groups(raw, chosen)
    if form == "text":
        options = {"host": host, "port": _default_port(chosen) if port is None else port}
        options |= {"connections": connections, "is_open": is_open, "certfile": certfile, "keyfile": keyfile}
        listening = [
            EffectiveSetting(name.removeprefix("is_"), value, _source_of_option(context, name))
            for name, value in options.items()
        ]
        groups = [SettingGroup("serve", listening), *groups, *effective.own_groups(raw, chosen, _fit)]
    if not is_all:
        groups = effective.without_defaults(groups)
    write = {"text": effective.to_text, "toml": effective.to_toml, "json": effective.to_json}[form]
    click.echo(write(groups))


def _source_of_option(context: click.Context, name: str) -> str:
    is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return sources.COMMAND_LINE if is_given else effective.DEFAULT


def _fit(model: ModelSettings) -> ModelSettings:
    """Chooses what a model's settings leave open, as its engine would do now; says so where nothing fits."""
    from corosrv.models.engine.memory import fit_model

    try:
        fitted = fit_model(model)
    except (CorosrvError, OSError) as error:
        click.echo(f"corosrv: {error}", err=True)
        return model
    return fitted.settings if fitted.words or model.is_synthetic else model  # else its file is not known yet


@main.command(cls=SectionedHelp)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", "-p", default=8080, show_default=True, type=click.IntRange(1, 65535))
@setting_options(ModelSettings, HubSettings, ServerSettings)
def doctor(host: str, port: int, config: Path | None, **overrides: Any) -> None:
    """Check this machine and advise on each finding."""
    from corosrv.doctor import examine

    is_well = True
    for finding in examine(lambda: settings.load(overrides, file=config), host, port):
        is_well = is_well and not finding.is_fatal
        click.echo(f"{finding.grade.value:5} {finding.subject}: {finding.text}")
        if finding.advice:
            click.echo(f"      -> {finding.advice}")
        sys.stdout.flush()  # a pipe's reader is told as well
    sys.exit(0 if is_well else 1)


@main.command(cls=SectionedHelp)
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--url",
    help="address of a server that answers the lines, with its prefix; --api-key and COROSRV_API_KEY are sent to it  "
    "[this process answers]",
)
@setting_options(ModelSettings, HubSettings, ServerSettings)
def batch(source: Path, target: Path, url: str | None, config: Path | None, **overrides: Any) -> None:
    """Answer the requests in IN, a file of a batch of OpenAI's API, and add the answers to OUT.

    Lines that OUT has are not run again. The status is 1 if answers in OUT are errors.
    """
    from gevent import get_hub, monkey

    monkey.patch_all()
    get_hub().NOT_ERROR += (KeyboardInterrupt,)  # which ends the command, and needs no traceback
    from corosrv.serving import batches
    from corosrv.serving.server import Server

    chosen = _load(config, overrides)
    with contextlib.ExitStack() as stack:
        if url is None:
            for model in chosen.models:
                _check_files(model)
            own = dataclasses.replace(chosen.server, api_keys="", api_key_file="", api_keys_file="", files_path="")
            server = Server(dataclasses.replace(chosen, server=own))
            caller, gate = stack.enter_context(batches.own_caller(server))
        else:
            address = ServerAddress(url)
            api_key = overrides["api_keys"] or os.environ.get("COROSRV_API_KEY", "")
            connect = functools.partial(blocking_connection, address, batches.ANSWER_S)
            caller, gate = batches.url_caller(connect, address.prefix, api_key, chosen.server.batch_lines)
        bar = stack.enter_context(click.progressbar(length=1, label=str(target), file=sys.stderr))

        def tell(counts: batches.FileCounts) -> None:
            bar.length = counts.total
            bar.update(counts.done - bar.pos)

        try:
            counts = batches.run_file(source, target, caller, gate, chosen.server.max_body_bytes, tell)
        except OSError as error:
            fail(f"{error.filename or target}: {error.strerror}")
        tell(counts)
    click.echo(f"{target}: {counts.done} of {counts.total} lines answered, {counts.failed} of them by errors", err=True)
    sys.exit(1 if counts.failed else 0)


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="address of a server, with its prefix")
@click.option("--api-key", envvar="COROSRV_API_KEY", default="", help="sent as a bearer key; also COROSRV_API_KEY")
@click.option("--once", is_flag=True, help="print one picture and end")
def top(url: str, api_key: str, once: bool) -> None:
    """Watch a server at work: slots, steps, queues, the hub. Ctrl-C ends it."""
    from corosrv.client.top import run

    run(url, api_key, is_single=once)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
def completion(shell: str | None) -> None:
    """Print what makes a shell complete commands and options: eval "$(corosrv completion bash)".

    Without SHELL it is the one of $SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "bash")).name
    completer = get_completion_class(name)
    if completer is None:
        fail(f"the shell {name} cannot be completed for: say corosrv completion bash, zsh or fish")
    click.echo(completer(main, {}, "corosrv", "_COROSRV_COMPLETE").source())


@main.group(cls=SectionedGroup, invoke_without_command=True)
@setting_options(ModelSettings, HubSettings, ServerSettings)
@click.pass_context
def models(context: click.Context, /, config: Path | None, **overrides: Any) -> None:
    """Show the models that would be served, and those of hubs that are in the cache; pull and remove these."""
    context.obj = (config, overrides)
    if context.invoked_subcommand is not None:
        return
    lines = list(map(_describe, _load(config, overrides).models))
    click.echo("\n".join(lines or ["no model is served here"]))
    with contextlib.suppress(HubMissing):
        if stored := stored_models():
            click.echo("\nin the cache:\n" + "\n".join(map(str, stored)))


models.add_command(pull_model)
models.add_command(remove_model)


def _check_files(model: ModelSettings) -> None:
    if model.record and (fault := fault_of_path(model.record)):
        fail(f"--record: {fault}")
    if model.is_hub:
        library.check_installed()
    elif not model.is_synthetic and not Path(model.model).is_file():
        fail(f"the model file {model.model} {flaw_of(Path(model.model))}")
    for path, _ in model.adapters:
        if not Path(path).is_file():
            fail(f"the LoRA adapter {path} does not exist: give the paths of GGUF files with --lora")


def _describe(model: ModelSettings) -> str:
    if model.is_synthetic:
        return f"{model.names[0]}  synthetic, for load tests  {model.model}"
    if model.is_hub:
        return f"{', '.join(model.names)}  of a hub  {model.model}"
    _check_files(model)
    path = Path(model.model)
    return f"{', '.join(model.names)}  {path.stat().st_size / 1e6:.0f} MB  {path}"


def _load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    try:
        return settings.load(overrides, file=config)
    except SettingsError as error:
        fail(str(error))


def _hand_down(config: Path | None, overrides: dict[str, Any]) -> None:
    """Puts the options of the command line into the environment, where worker processes read them."""
    if config is not None:
        os.environ[sources.PREFIX + "CONFIG"] = str(config.resolve())
    for name, value in overrides.items():
        if value is not None:
            os.environ[sources.PREFIX + name.upper()] = str(int(value) if isinstance(value, bool) else value)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def raise_descriptor_limit(connections: int) -> None:
    """Raises the soft limit of open files to the hard one; warns if that is not enough."""
    hard = worker_watch.raise_limit()
    # A socket and an eventfd for each stream.
    if hard < 2 * connections:
        click.echo(
            f"corosrv: the limit of open files is {hard}, enough for about {hard // 2 - 100} streams (ulimit -n)",
            err=True,
        )


def run_main() -> None:
    """Runs the command line; an error of corosrv's own is printed as a sentence, not as a traceback."""
    try:
        main()
    except CorosrvError as error:
        fail(str(error))


if __name__ == "__main__":
    run_main()
