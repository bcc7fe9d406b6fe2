"""The command line: serve, and what needs no module of its own."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError
from corosrv.cli_help import PASSED_ON, CommandGroup, SectionedHelp, fail
from corosrv.cli_options import PORT, PREDICTOR_PORT, serve_options
from corosrv.contracts import settings
from corosrv.contracts.settings import PARTS, ModelSettings, Settings, UpstreamSettings, loading, sources
from corosrv.contracts.settings.fleet import new_replica_id
from corosrv.contracts.settings.loading import EffectiveSetting, SettingGroup
from corosrv.models.fitting.model_file import check_model_files
from corosrv.web.http import worker_watch


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="corosrv")
def main() -> None:
    """A cooperative model server: one OS thread, thousands of open streams."""


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
    chosen = settings.load(overrides, file=config)
    for model in chosen.models:
        check_model_files(model)
    _check_upstreams(chosen.upstream)
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
    raw = sources.read(overrides, None, config, PARTS)
    chosen = settings.assemble(raw)
    _check_upstreams(chosen.upstream)
    groups = loading.effective_groups(raw, chosen)
    if form == "text":
        options = {"host": host, "port": _default_port(chosen) if port is None else port}
        options |= {"connections": connections, "is_open": is_open, "certfile": certfile, "keyfile": keyfile}
        listening = [
            EffectiveSetting(name.removeprefix("is_"), value, _source_of_option(context, name))
            for name, value in options.items()
        ]
        groups = [SettingGroup("serve", listening), *groups, *loading.own_groups(raw, chosen, _fit)]
    if not is_all:
        groups = loading.without_defaults(groups)
    write = {"text": loading.groups_to_text, "toml": loading.groups_to_toml, "json": loading.groups_to_json}[form]
    click.echo(write(groups))


def _source_of_option(context: click.Context, name: str) -> str:
    is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return sources.COMMAND_LINE if is_given else loading.DEFAULT


def _fit(model: ModelSettings) -> ModelSettings:
    """Chooses what a model's settings leave open, as its engine would do now; says so where nothing fits."""
    from corosrv.models.engine.memory import fit_model

    try:
        fitted = fit_model(model)
    except (CorosrvError, OSError) as error:
        click.echo(f"corosrv: {error}", err=True)
        return model
    return fitted.settings if fitted.words or model.is_synthetic else model  # else its file is not known yet


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


def _check_upstreams(upstream_settings: UpstreamSettings | None) -> None:
    """Raises SettingsError if the URL of an upstream says what cannot be."""
    if upstream_settings is not None:
        from corosrv.fleet.upstreams.spec import parse_all

        parse_all(upstream_settings.urls)


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
        n_streams = max(hard // 2 - 100, 1)
        click.echo(
            f"corosrv: the limit of open files is {hard}, enough for about {n_streams} streams (ulimit -n)",
            err=True,
        )


if __name__ == "__main__":
    main()
