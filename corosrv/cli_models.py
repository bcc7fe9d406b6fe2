"""The commands about models that open no port: doctor, batch, and models."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from pathlib import Path
from typing import Any

import click

from corosrv.base.errors import HubMissing
from corosrv.cli_help import SectionedGroup, SectionedHelp, fail
from corosrv.cli_options import setting_options
from corosrv.contracts import settings
from corosrv.contracts.settings import HubSettings, ModelSettings, ServerSettings
from corosrv.models.fitting.model_file import check_model_files
from corosrv.models.hub.cache import stored_models
from corosrv.models.hub.commands import pull_model, remove_model


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
