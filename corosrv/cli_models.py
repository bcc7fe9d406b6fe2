"""The commands about models that open no port: doctor, batch, and models with its pull and rm."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from corosrv.base.errors import HubMissing, SettingsError
from corosrv.cli_help import SectionedGroup, SectionedHelp, fail
from corosrv.cli_options import setting_options
from corosrv.contracts import settings
from corosrv.contracts.settings import HubSettings, ModelSettings, ServerSettings, load_hub
from corosrv.contracts.settings import model_list as hub_name
from corosrv.contracts.settings.model_list import HubName
from corosrv.models.fitting.model_file import check_model_files
from corosrv.models.hub import cache
from corosrv.models.hub.cache import stored_models
from corosrv.models.hub.client import PullProgress

_PAUSES = (0.2, 10.0)  # seconds between two reports: to a terminal, and to a log


class ProgressLine:
    """Writes how far a download is: one line that changes on a terminal, otherwise a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_at = 0.0
        self._began_at = time.monotonic()
        self._first = -1

    def __call__(self, n_bytes: int, total: int) -> None:
        now = time.monotonic()
        if self._first < 0 < n_bytes:
            self._first, self._began_at = n_bytes, now
        is_last = n_bytes >= total > 0
        if now < self._next_at and not is_last:
            return
        self._next_at = now + _PAUSES[0 if self._is_terminal else 1]
        rate = max(0, n_bytes - max(self._first, 0)) / max(now - self._began_at, 0.1) / 1e6
        line = f"{PullProgress(n_bytes, total)}, {rate:.0f} MB/s"
        click.echo(f"\r{line:60}" if self._is_terminal else line, err=True, nl=not self._is_terminal)

    def close(self) -> None:
        """Ends the line."""
        if self._is_terminal:
            click.echo(err=True)


def _parse(name: str) -> HubName:
    try:
        return hub_name.parse_hub_name(name)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


@click.command("pull")
@click.argument("name")
@click.option("--hf-token", "-hft", help="token, instead of HF_TOKEN")
@click.option("--offline", is_flag=True, default=None, help="ask no hub: tell where the files in the cache are")
@click.option("--no-mmproj", is_flag=True, help="leave the projector of a model that takes images")
@click.pass_obj
def pull_model(before: tuple[Path | None, dict[str, Any]], /, name: str, no_mmproj: bool, **overrides: Any) -> None:
    """Download a model of a hub into the cache: NAME is hf:OWNER/REPO:Q4_K_M, or the like."""
    from corosrv.models.hub.client import pull

    config, given = before  # --config and settings that stand before the command
    hub = load_hub(given | {name: value for name, value in overrides.items() if value is not None}, file=config)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    line = ProgressLine()
    try:
        model = pull(_parse(name), line, hub, not no_mmproj)
    finally:
        line.close()
    if model.offline:
        click.echo(f"corosrv: the files in the cache are used, for {model.offline}", err=True)
    click.echo(model.model)
    if model.mmproj:
        click.echo(model.mmproj)


@click.command("rm")
@click.argument("name")
def remove_model(name: str) -> None:
    """Remove a model from the cache: all of its repository, or of it a quantisation or file."""
    click.echo(f"{cache.remove(_parse(name)) / 1e6:.0f} MB freed")


@click.command(cls=SectionedHelp)
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


@click.command(cls=SectionedHelp)
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
    from corosrv.client.http import ServerAddress, blocking_connection
    from corosrv.serving import batches
    from corosrv.serving.server import Server

    chosen = settings.load(overrides, file=config)
    with contextlib.ExitStack() as stack:
        if url is None:
            for model in chosen.models:
                check_model_files(model)
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


@click.group(cls=SectionedGroup, invoke_without_command=True)
@setting_options(ModelSettings, HubSettings, ServerSettings)
@click.pass_context
def models(context: click.Context, /, config: Path | None, **overrides: Any) -> None:
    """Show the models that would be served, and those of hubs that are in the cache; pull and remove these."""
    context.obj = (config, overrides)
    if context.invoked_subcommand is not None:
        return
    lines = list(map(_describe, settings.load(overrides, file=config).models))
    click.echo("\n".join(lines or ["no model is served here"]))
    with contextlib.suppress(HubMissing):
        if stored := stored_models():
            click.echo("\nin the cache:\n" + "\n".join(map(str, stored)))


models.add_command(pull_model)
models.add_command(remove_model)


def _describe(model: ModelSettings) -> str:
    if model.is_synthetic:
        return f"{model.names[0]}  synthetic, for load tests  {model.model}"
    if model.is_hub:
        return f"{', '.join(model.names)}  of a hub  {model.model}"
    check_model_files(model)
    path = Path(model.model)
    return f"{', '.join(model.names)}  {path.stat().st_size / 1e6:.0f} MB  {path}"
