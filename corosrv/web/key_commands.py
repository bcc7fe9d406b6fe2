"""The commands `corosrv keys add`, `list` and `remove`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import click

from corosrv.contracts.settings import DEFAULT_TIER, TIERS, KeyEntry, add_key, read_keys, remove_key


@click.group()
def keys() -> None:
    """Add, list and remove API keys with limits: those of the file that serve has as --api-keys-file."""


_in_file = click.option(
    "--file",
    "-f",
    "path",
    envvar="COROSRV_API_KEYS_FILE",
    required=True,
    help="the file of keys; also COROSRV_API_KEYS_FILE",
)
_limit = click.IntRange(1)


@keys.command("add")
@click.argument("name")
@_in_file
@click.option(
    "--model", "models", multiple=True, help="a model that the key may use; may be given several times  [all]"
)
@click.option("--tier", type=click.IntRange(0, TIERS), help=f"0 goes first, {TIERS} last  [{DEFAULT_TIER}]")
@click.option("--weight", type=float, help="of its share among the keys of its tier  [1]")
@click.option("--streams", type=_limit, help="answers made at once")
@click.option("--requests-per-minute", type=_limit)
@click.option("--tokens-per-minute", type=_limit, help="of prompts and answers")
@click.option("--tokens-per-day", type=_limit, help="of prompts and answers, from midnight to midnight in UTC")
@click.option("--expires", type=click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S")), help="in UTC")
@click.option("--admin", is_flag=True, help="GET /v1/usage shows it the usage of all keys")
def add_to_keys(name: str, path: str, models: tuple[str, ...], admin: bool, **limits: Any) -> None:
    """Make a key, print it, and add its hash to the file.

    The key is shown this once. A running server knows it at once.
    """
    click.echo(add_key(path, name, {"models": models or None, **limits, "admin": admin or None}))


@keys.command("list")
@_in_file
def list_keys(path: str) -> None:
    """List the keys of the file and their limits."""
    click.echo("\n".join(map(_describe_key, read_keys(path))) or "there is no key in it")


def _describe_key(entry: KeyEntry) -> str:
    """Describes a key by its name and by what differs from a key without limits."""
    plain = KeyEntry(name=entry.name, hash=entry.hash)
    values = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    if entry.expires is not None:
        with contextlib.suppress(OverflowError, ValueError, OSError):
            values["expires"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.expires))
    said = [
        f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in values.items()
        if value != getattr(plain, name)
    ]
    return "  ".join((entry.name, *said))


@keys.command("remove")
@click.argument("name")
@_in_file
def remove_from_keys(name: str, path: str) -> None:
    """Remove a key from the file. A running server refuses it at once."""
    remove_key(path, name)
