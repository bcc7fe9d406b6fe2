"""The commands `corosrv ps`, `drain`, `scale`, `worker` and `upstream`: calls of the management API, and tables."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from corosrv.base.errors import ManagementError, Refused, SettingsError
from corosrv.fleet.upstreams.spec import UpstreamSpec
from corosrv.web.management.client import ManagementClient, Membership, RemoteClient, find_server, path_of, token_of
from corosrv.web.management.joining import Joiner, JoinTarget
from corosrv.workers.manager.joined import Joining

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

WIDEST = 60  # characters of a cell


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns lines with a head, as wide as the content needs."""
    cells = [[head for head, _ in columns]] + [[_cut(show(row)) for _, show in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def duration(milliseconds: float | None) -> str:
    """Formats a time: `850ms`, `12s`, `5m`, `3h`, `2d`; `-` for none."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f}ms"
    for unit, length, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def megabytes(n_bytes: float) -> str:
    """Formats an amount of memory; `-` for none."""
    return f"{n_bytes / 1e6:.0f}MB" if n_bytes else "-"


# A line for each worker process, pool, upstream and queue.
WORKERS: Sequence[Column] = (
    ("WORKER", lambda row: row["id"]),
    ("STATE", lambda row: row["state"] + (" (to be replaced)" if row["is_outgoing"] else "")),
    ("PID", lambda row: str(row["pid"] or "-")),
    ("AGE", lambda row: duration(row["age_ms"])),
    ("BUSY", lambda row: f"{row['in_flight']}/{row['concurrency']}"),
    ("SERVED", lambda row: str(row["served"])),
    ("FAILED", lambda row: str(row["failed"])),
    ("RESTARTS", lambda row: str(row["restarts"])),
    ("MEMORY", lambda row: megabytes(row["rss"])),
    ("REASON", lambda row: row["reason"]),
)
POOLS: Sequence[Column] = (
    ("POOL", lambda row: row["name"]),
    ("READY", lambda row: f"{row['workers'].get('ready', 0)}/{row['target']}"),
    ("MIN", lambda row: str(row["min"])),
    ("MAX", lambda row: str(row["max"])),
    ("WAITING", lambda row: str(row["depth"])),
    ("OLDEST", lambda row: duration(row["oldest_ms"] or None)),
    ("DECISION", lambda row: row["decision"]),
)
UPSTREAMS: Sequence[Column] = (
    ("UPSTREAM", lambda row: row["id"]),
    ("URL", lambda row: row["url"]),
    ("STATE", lambda row: row["state"]),
    ("BUSY", lambda row: f"{row['in_flight']}/{row['concurrency']}"),
    ("OK", lambda row: str(row["ok"])),
    ("FAILED", lambda row: str(sum(row["failed"].values()))),
    ("ABORTED", lambda row: str(row["aborted"])),
    ("FIRST BYTE", lambda row: duration(row["first_byte_ms"])),
    ("MODELS", lambda row: ", ".join(row["models"])),
    ("REASON", lambda row: row["reason"]),
)
QUEUES: Sequence[Column] = (
    ("QUEUE", lambda row: row["key"]),
    ("STATE", lambda row: row["state"].lower()),
    ("WAITING", lambda row: f"{row['depth']}/{row['max_depth']}"),
    ("OLDEST", lambda row: duration(row["oldest_ms"])),
    ("RUNNING", lambda row: f"{row['in_flight']}/{row['permits']}"),
    ("WAIT", lambda row: duration(row["wait_ewma_ms"])),
    ("SERVICE", lambda row: duration(row["service_ewma_ms"])),
)


_FRONT_TIMEOUT = 5.0  # seconds that each step of a call to a front may take
_STOPS = (signal.SIGTERM, signal.SIGINT)

_token_option = click.option(
    "--token-file", default="", help="file with the token of a server named by its URL [COROSRV_MGMT_TOKEN_FILE]"
)


def _server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say which server is meant, and how the answer is shown."""
    for option in (
        click.option("--json", "is_json", is_flag=True, help="print JSON for programs"),
        click.option(
            "--server",
            default="",
            metavar="PID_OR_URL",
            help="which server, where several run here; or the URL of its management port, as http://front:8079",
        ),
        _token_option,
        click.option("--run-dir", default="", help="where the server has its socket [COROSRV_RUN_DIR]"),
    ):
        command = option(command)
    return command


def _find(run_dir: str, server: str, token_file: str) -> tuple[ManagementClient, dict[str, Any]]:
    try:
        if "://" not in server:
            return find_server(run_dir, server)
        client = RemoteClient(server, token_of(token_file))
        return client, client.call("GET", "/v1/server")
    except OSError as error:
        raise click.ClickException(f"the server at {server} gave no answer: {error}") from None
    except (ManagementError, SettingsError) as error:
        raise click.ClickException(str(error)) from None


def _call(client: ManagementClient, method: str, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return client.call(method, target, body)
    except (ManagementError, OSError) as error:
        raise click.ClickException(str(error)) from None


@click.command()
@_server_options
def ps(run_dir: str, server: str, token_file: str, is_json: bool) -> None:
    """Show the pools, workers and queues of the server that runs here."""
    client, about = _find(run_dir, server, token_file)
    has_workers = "workers" in about["manages"]
    application: Any = _call(client, "GET", "/v1/pools") if has_workers else {"pools": [], "has_app": False}
    pools = application["pools"]
    workers = _call(client, "GET", "/v1/workers")["workers"] if has_workers else []
    queues = _call(client, "GET", "/v1/queues")["queues"]
    upstreams = _call(client, "GET", "/workers")["workers"] if "upstreams" in about["manages"] else []
    if is_json:
        shown = {"server": about, "pools": pools, "workers": workers, "upstreams": upstreams, "queues": queues}
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(
        f"corosrv {about['version']}, process {about['pid']}, up {duration(about['uptime_ms'])}: {about['state']}"
    )
    if application["has_app"] and not pools:
        failure = application["reason"]
        standing = f"could not be imported yet: {failure}" if failure else "is being imported"
        click.echo(f"\nno pools yet: the application {standing}")
    for columns, rows in ((POOLS, pools), (WORKERS, workers), (UPSTREAMS, upstreams), (QUEUES, queues)):
        if rows:
            click.echo("\n" + table(columns, rows))


@click.command()
@click.argument("worker")
@_server_options
def drain(worker: str, run_dir: str, server: str, token_file: str, is_json: bool) -> None:
    """Replace a worker, such as default/0: another one starts, then this one ends with its running calls.

    Where the host has no room for both, this one ends first.
    """
    client, _ = _find(run_dir, server, token_file)
    answer = _call(client, "POST", path_of("workers", worker, "drain"))
    click.echo(json.dumps(answer, indent=2) if is_json else f"{worker} (process {answer['pid']}) is being replaced")


@click.command()
@click.argument("pool")
@click.argument("least", metavar="MIN", type=click.IntRange(0))
@click.argument("most", metavar="MAX", type=click.IntRange(0))
@_server_options
def scale(pool: str, least: int, most: int, run_dir: str, server: str, token_file: str, is_json: bool) -> None:
    """Set how many workers a pool may have, until the server is started again."""
    client, _ = _find(run_dir, server, token_file)
    answer = _call(client, "PUT", path_of("pools", pool), {"min": least, "max": most})
    if is_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        n_ready = answer["workers"].get("ready", 0)
        click.echo(f"the pool {pool} may have from {least} to {most} workers; ready now: {n_ready}")


@click.command()
@click.argument("app")
@click.option(
    "--join",
    "path",
    required=True,
    metavar="PATH_OR_URL",
    help="a server's COROSRV_RUN_DIR, or its management socket in there; on another machine the URL of its management "
    "port, as https://front:8079",
)
@_token_option
@click.option("--ca-file", default="", help="authorities for the certificate of an https URL; default: the system's")
@click.option("--app-dir", default="", help="folder that the application is imported from; default: this one")
@click.option("--factory", is_flag=True, help="the application's name is that of a function that makes it")
@click.option("--pool", default="", help="the pool of the application to run; needed if it has several")
@click.option(
    "--shutdown-grace", type=click.FloatRange(0), default=25.0, show_default=True,
    help="seconds that running calls get after SIGTERM or SIGINT",
)  # fmt: skip
def worker(
    app: str, path: str, token_file: str, ca_file: str, app_dir: str, factory: bool, pool: str, shutdown_grace: float
) -> None:
    """Run a worker of APP (MODULE:NAME or FILE.py:NAME) for a server that somebody else has started.

    It joins again when the server was started anew, and when its process has crashed. SIGTERM and SIGINT end it; calls
    that run may end.
    """
    joining = Joining(app_ref=app, app_dir=app_dir, is_factory=factory, pool=pool)
    try:
        target = JoinTarget(place=path, token=token_of(token_file) if "://" in path else "", ca_file=ca_file)
        if target.is_remote and not target.token:
            raise ManagementError("to join over TCP takes the server's token: --token-file, or COROSRV_MGMT_TOKEN_FILE")
        Joiner(target, joining, shutdown_grace, lambda words: click.echo(words, err=True)).run()
    except (ManagementError, SettingsError) as error:
        raise click.ClickException(str(error)) from None


@click.group()
def upstream() -> None:
    """Add, remove and list the servers that requests are forwarded to."""


def _upstream_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds what describes an upstream: its URL, and how much it gets."""
    for option in (
        click.option(
            "--api-key-env", help="the server's environment variable with the key to send: COROSRV_UPSTREAM_KEY_..."
        ),
        click.option("--weight", type=float, help="its share of the requests beside others"),
        click.option("--concurrency", type=click.IntRange(1), help="requests that it gets at once"),
        click.option("--model", "models", multiple=True, help="a model that it serves; default: those that it lists"),
        click.argument("url"),
    ):
        command = option(command)
    return command


def _upstream_body(url: str, models: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    return {"url": url, "models": list(models)} | {name: value for name, value in options.items() if value is not None}


@upstream.command("add")
@_upstream_options
@_server_options
def add_upstream(
    url: str, models: tuple[str, ...], run_dir: str, server: str, token_file: str, is_json: bool, **options: Any
) -> None:
    """Forward requests to another server, too. One that is there already stays as it is."""
    client, _ = _find(run_dir, server, token_file)
    answer = _call(client, "POST", "/workers", _upstream_body(url, models, options))
    click.echo(json.dumps(answer, indent=2) if is_json else f"{answer['id']} ({answer['url']}) is {answer['state']}")


@upstream.command("remove")
@click.argument("name", metavar="URL_OR_ID")
@click.option("--abort", "is_abort", is_flag=True, help="end its running requests")
@_server_options
def remove_upstream(name: str, is_abort: bool, run_dir: str, server: str, token_file: str, is_json: bool) -> None:
    """Forward nothing more to a server; running requests end first."""
    client, _ = _find(run_dir, server, token_file)
    mode = "abort" if is_abort else "drain"
    answer = _call(client, "DELETE", f"/workers/{quote(name, safe='')}?mode={mode}")
    click.echo(json.dumps(answer, indent=2) if is_json else f"{answer['id']} ({answer['url']}) is {answer['state']}")


@upstream.command("list")
@_server_options
def list_upstreams(run_dir: str, server: str, token_file: str, is_json: bool) -> None:
    """Show the servers that requests are forwarded to."""
    client, _ = _find(run_dir, server, token_file)
    upstreams = _call(client, "GET", "/workers")["workers"]
    click.echo(json.dumps(upstreams, indent=2) if is_json else table(UPSTREAMS, upstreams))


@upstream.command("join")
@_upstream_options
@click.option(
    "--server", "fronts", multiple=True, required=True, metavar="URL",
    help="management port of the fronts, as http://front:8079: each address of the name is one; may be given several "
    "times",
)  # fmt: skip
@_token_option
@click.option("--every", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="seconds")
def join_upstreams(
    url: str, models: tuple[str, ...], fronts: tuple[str, ...], token_file: str, every: float, **options: Any
) -> None:
    """Keep a server among the upstreams of fronts, and remove it at the end.

    It is added again every few seconds, in case a front was started anew. SIGTERM and SIGINT end this; what the server
    runs then may end.
    """
    try:
        token = token_of(token_file)
        clients = [RemoteClient(front, token, _FRONT_TIMEOUT) for front in fronts]
        url = UpstreamSpec(url=url).url  # as the fronts will know it
    except (ManagementError, Refused) as error:
        raise click.ClickException(str(error)) from None
    # Blocked, not handled: one that comes in the middle of a call waits for its end.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    membership = Membership(clients, _upstream_body(url, models, options), click.echo)
    membership.renew()
    while signal.sigtimedwait(_STOPS, every) is None:
        membership.renew()
    membership.leave()
