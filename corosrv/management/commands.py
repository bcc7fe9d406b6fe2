"""Implements `corosrv ps`, `corosrv drain` and `corosrv scale` over the management API of the server that runs here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from corosrv.errors import ManagementError, SettingsError
from corosrv.management.client import ManagementClient, find_server, path_of
from corosrv.management.tables import duration, pools_table, queues_table, workers_table


def _server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say which server is meant, and how the answer is shown."""
    for option in (
        click.option("--json", "is_json", is_flag=True, help="print JSON for programs"),
        click.option("--server", default="", metavar="PID", help="which server, where several run"),
        click.option("--run-dir", default="", help="where the server has its socket [COROSRV_RUN_DIR]"),
    ):
        command = option(command)
    return command


def _find(run_dir: str, server: str) -> tuple[ManagementClient, dict[str, Any]]:
    try:
        return find_server(run_dir, server)
    except (ManagementError, SettingsError) as error:
        raise click.ClickException(str(error)) from None


def _call(client: ManagementClient, method: str, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return client.call(method, target, body)
    except (ManagementError, OSError) as error:
        raise click.ClickException(str(error)) from None


@click.command()
@_server_options
def ps(run_dir: str, server: str, is_json: bool) -> None:
    """Show the pools, workers and queues of the server that runs here."""
    client, about = _find(run_dir, server)
    pools = _call(client, "GET", "/v1/pools")["pools"]
    workers = _call(client, "GET", "/v1/workers")["workers"]
    queues = _call(client, "GET", "/v1/queues")["queues"]
    if is_json:
        click.echo(json.dumps({"server": about, "pools": pools, "workers": workers, "queues": queues}, indent=2))
        return
    click.echo(
        f"corosrv {about['version']}, process {about['pid']}, up {duration(about['uptime_ms'])}: {about['state']}"
    )
    if not pools:
        failure = about.get("reason")
        standing = f"could not be imported yet: {failure}" if failure else "is being imported"
        click.echo(f"\nno pools yet: the application {standing}")
    for show, rows in ((pools_table, pools), (workers_table, workers), (queues_table, queues)):
        if rows:
            click.echo("\n" + show(rows))


@click.command()
@click.argument("worker")
@_server_options
def drain(worker: str, run_dir: str, server: str, is_json: bool) -> None:
    """Replace a worker, such as default/0: another one starts, then this one ends with its running calls.

    Where the host has no room for both, this one ends first.
    """
    client, _ = _find(run_dir, server)
    answer = _call(client, "POST", path_of("workers", worker, "drain"))
    click.echo(json.dumps(answer, indent=2) if is_json else f"{worker} (process {answer['pid']}) is being replaced")


@click.command()
@click.argument("pool")
@click.argument("least", metavar="MIN", type=click.IntRange(0))
@click.argument("most", metavar="MAX", type=click.IntRange(0))
@_server_options
def scale(pool: str, least: int, most: int, run_dir: str, server: str, is_json: bool) -> None:
    """Set how many workers a pool may have, until the server is started again."""
    client, _ = _find(run_dir, server)
    answer = _call(client, "PUT", path_of("pools", pool), {"min": least, "max": most})
    if is_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        n_ready = answer["workers"].get("ready", 0)
        click.echo(f"the pool {pool} may have from {least} to {most} workers; ready now: {n_ready}")
