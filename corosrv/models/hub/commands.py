"""The commands `corosrv models pull` and `corosrv models rm`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import load_hub
from corosrv.contracts.settings import model_list as hub_name
from corosrv.contracts.settings.model_list import HubName
from corosrv.models.hub import cache
from corosrv.models.hub.pull import PullProgress

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
    from corosrv.models.hub.pull import pull

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
