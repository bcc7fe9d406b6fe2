"""The command line: serve, bench, doctor, models."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import click

from corosrv import __version__, model_list, settings
from corosrv.bench.command import bench
from corosrv.errors import CorosrvError, SettingsError
from corosrv.http import descriptors
from corosrv.settings import Settings

CONNECTIONS = 10_000


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="corosrv")
def main() -> None:
    """A cooperative model server: one OS thread, thousands of open streams."""


main.add_command(bench)


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every setting, in the order of the settings; the environment and the file stand behind them."""
    for field in reversed(fields(Settings)):
        flag = "--" + field.name.replace("_", "-")
        kind: Any = {"int": int, "float": float, "str": str, "bool": click.BOOL}[str(field.type)]
        text = f"{field.metadata['help']} [{settings.PREFIX}{field.name.upper()}; {field.default!r}]"
        several: dict[str, Any] = {"multiple": True, "callback": _joined} if field.name == "model" else {}
        command = click.option(flag, field.name, type=kind, default=None, help=text, **several)(command)
    config = click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings by these names")
    return config(command)


def _joined(context: click.Context, option: click.Parameter, models: tuple[str, ...]) -> str | None:
    """`--model` said more than once is a list, as the environment and the file have it."""
    return model_list.join(models) if models else None


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", "-p", default=8080, show_default=True, type=click.IntRange(0, 65535), help="port")
@click.option(
    "--workers",
    "-w",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="processes, each with an engine of its own",
)
@click.option(
    "--connections", default=CONNECTIONS, show_default=True, type=click.IntRange(1), help="clients at once, per process"
)
@click.option("--open", "is_open", is_flag=True, help="listen beyond this machine without any API key")
@setting_options
def serve(
    host: str, port: int, workers: int, connections: int, is_open: bool, config: Path | None, **overrides: Any
) -> None:
    """Serve a model: gunicorn with the gevent worker and good defaults."""
    chosen = _load(config, overrides)
    if not is_open and not chosen.keys and not _is_loopback(host):
        _fail(f"{host} can be reached by others: set COROSRV_API_KEYS, or say --open if everybody may use this server")
    raise_descriptor_limit(connections)
    _hand_down(config, overrides)
    if workers > 1:
        click.echo(f"corosrv: {workers} processes, each with an engine and a model of its own", err=True)
    from corosrv.server import OPTIONS, run  # late: patches the process for gevent

    run(
        {
            **OPTIONS,
            "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "workers": workers,
            "worker_connections": connections,
            # gunicorn's own limit only has to come after ours, which ends streams with an event.
            "graceful_timeout": int(chosen.drain_s) + 5,
        }
    )


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", "-p", default=8080, show_default=True, type=click.IntRange(1, 65535))
@setting_options
def doctor(host: str, port: int, config: Path | None, **overrides: Any) -> None:
    """Check this machine, and say what to do about each finding."""
    from corosrv.doctor import examine

    findings = examine(lambda: settings.load(overrides, file=config), host, port)
    for finding in findings:
        click.echo(f"{finding.grade.value:5} {finding.subject}: {finding.text}")
        if finding.advice:
            click.echo(f"      -> {finding.advice}")
    sys.exit(1 if any(finding.is_fatal for finding in findings) else 0)


@main.command()
@setting_options
def models(config: Path | None, **overrides: Any) -> None:
    """Show the models that would be served: their names, files and sizes."""
    lines = list(map(_describe, _load(config, overrides).models))
    click.echo("\n".join(lines))


def _describe(model: Settings) -> str:
    if model.is_synthetic:
        return f"{model.names[0]}  made up, for load tests  {model.model}"
    path = Path(model.model)
    if not path.is_file():
        _fail(f"the model file {path} does not exist")
    return f"{', '.join(model.names)}  {path.stat().st_size / 1e6:.0f} MB  {path}"


def _load(config: Path | None, overrides: dict[str, Any]) -> Settings:
    try:
        return settings.load(overrides, file=config)
    except SettingsError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"corosrv: {message}", err=True)
    sys.exit(1)


def _hand_down(config: Path | None, overrides: dict[str, Any]) -> None:
    """Puts what the command line said where the worker processes will look for it."""
    if config is not None:
        os.environ[settings.PREFIX + "CONFIG"] = str(config.resolve())
    for name, value in overrides.items():
        if value is not None:
            os.environ[settings.PREFIX + name.upper()] = str(int(value) if isinstance(value, bool) else value)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def raise_descriptor_limit(connections: int) -> None:
    """Raises the soft limit of open files to the hard one; says so where that is not enough."""
    hard = descriptors.raise_limit()
    # A socket and an eventfd for each stream.
    if hard < 2 * connections:
        click.echo(
            f"corosrv: at most {hard} files may be open, enough for some {hard // 2 - 100} streams at once (ulimit -n)",
            err=True,
        )


def run_main() -> None:
    """Entry point: errors of ours are a sentence, not a traceback."""
    try:
        main()
    except CorosrvError as error:
        _fail(str(error))


if __name__ == "__main__":
    run_main()
