"""The commands `corosrv ray`: they talk to the controller of a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from corosrv.base import __version__
from corosrv.base.errors import SettingsError
from corosrv.fleet.ray.cluster_file import ClusterFile, read_cluster_file

LOOK = 0.5  # seconds between two looks at what one waits for
UP_TIME = 600.0  # seconds that `up` and `down` wait, unless they are told
_address = click.option(
    "--address", default="auto", show_default=True, help="Ray's head, as HOST:6379; auto: the one that runs here"
)


_wait_option = click.option(
    "--wait", "seconds", type=click.FloatRange(0), default=UP_TIME, show_default=True, help="seconds until all is ready"
)


@click.group("ray")
def ray_group() -> None:
    """Place fronts, engines and pools on a Ray cluster, and keep them there."""


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connects this process to Ray, unless it is already, and yields the module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise click.ClickException("Ray is not installed here: pip install 'corosrv[ray]'") from None
    was_connected = ray.is_initialized()
    try:
        if not was_connected:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        yield ray
    except ray.exceptions.RayTaskError as error:  # what a call of the controller raised
        raise click.ClickException(str(error.cause)) from None
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise click.ClickException(f"the Ray cluster at {address} gives no answer: {error}") from None
    finally:
        if not was_connected:
            ray.shutdown()


class ControllerLink:
    """The controller of the cluster that this process is connected to. Its calls wait."""

    def __init__(self, ray: Any, *, may_start: bool = False) -> None:
        """Finds it; with `may_start` starts it where there is none. Raises ClickException."""
        from corosrv.fleet.ray.controller import Controller
        from corosrv.fleet.ray.placement import CONTROLLER, NAMESPACE

        self._ray = ray
        try:
            self._actor = ray.get_actor(CONTROLLER, NAMESPACE)
        except ValueError:
            if not may_start:
                raise click.ClickException("nothing runs on this cluster: corosrv ray up FILE starts it") from None
            own = {"name": CONTROLLER, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
            options = own | {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 8, "num_cpus": 0}
            self._actor = ray.remote(Controller).options(**options).remote()

    def call(self, method: str, *values: Any) -> Any:
        from corosrv.fleet.ray.placement import CALL_TIME

        return self._ray.get(getattr(self._actor, method).remote(*values), timeout=CALL_TIME)

    def end(self) -> None:
        """Ends the controller for good, with what it had stored."""
        from corosrv.fleet.ray.controller import STATE_KEY
        from corosrv.fleet.ray.placement import ActorSpace

        self._ray.kill(self._actor, no_restart=True)
        ActorSpace().forget(STATE_KEY)


@ray_group.command("up")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_address
@_wait_option
def up(file: Path, address: str, seconds: float) -> None:
    """Start what FILE says, or bring what runs to it, process by process; then wait until all is ready.

    What the cluster has no room for is named, and starts when there is room, also after this command.
    """
    try:
        cluster = read_cluster_file(file)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    with _connected(address) as ray:
        _check_addresses(ray, cluster)
        link = ControllerLink(ray, may_start=True)
        if (version := link.call("version")) != __version__:
            raise click.ClickException(
                f"the cluster runs corosrv {version}, and this is {__version__}: bring it down first"
            )
        link.call("apply", _to_values(cluster))
        _settle(link, seconds)


def _to_values(cluster: ClusterFile) -> dict[str, Any]:
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(cluster)
    return values


def _check_addresses(ray: Any, cluster: ClusterFile) -> None:
    """Raises ClickException where the nodes are on several machines, and the file keeps all to one."""
    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if cluster.listen == "loopback" and len(machines) > 1:
        raise click.ClickException(
            f"the cluster has {len(machines)} machines, which reach each other only by listen = 'node' in the file"
        )


def _settle(link: ControllerLink, seconds: float) -> None:
    """Waits until all is as wanted. Raises ClickException if it is not in time; 0 seconds: waits for nothing."""
    if seconds and not _wait(link, _is_settled, seconds):
        raise click.ClickException(f"not all was ready within {seconds:g} s; it goes on: corosrv ray status")


def _wait(link: ControllerLink, is_done: Callable[[dict[str, Any]], bool], seconds: float) -> bool:
    """Waits, and prints each change on the way; returns whether it was done in time."""
    shown: set[str] = set()
    deadline = time.monotonic() + seconds
    while True:
        status = link.call("status")
        lines = {_line(one) for one in status["members"]}
        for line in sorted(lines - shown):
            click.echo(line)
        shown = lines
        if is_done(status):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK)


def _is_settled(status: dict[str, Any]) -> bool:
    groups = status["groups"]
    is_whole = all(one["ready"] == one["target"] and not one["outdated"] for one in groups)
    return is_whole and len(status["members"]) == sum(one["target"] for one in groups)


def _line(member: dict[str, Any]) -> str:
    where = f" at {member['url']}" if member["url"] else ""
    why = f": {member['reason']}" if member["reason"] else ""
    return f"{member['kind']} {member['group']} {member['id'].rpartition(':')[2]} is {member['state']}{where}{why}"


@ray_group.command("status")
@_address
@click.option("--json", "is_json", is_flag=True, help="print JSON for programs")
def show_status(address: str, is_json: bool) -> None:
    """Show what runs, and what waits for room."""
    # Ray tells on standard output, in lines of its own, of nodes that die meanwhile.
    with contextlib.redirect_stdout(sys.stderr), _connected(address) as ray:
        status = ControllerLink(ray).call("status")
    if is_json:
        click.echo(json.dumps(status, indent=2))
        return
    for one in status["groups"]:
        words = f"{one['kind']} {one['name']}: {one['ready']} of {one['target']} ready, {one['min']}..{one['max']}"
        words += f", {one['outdated']} of another version" if one["outdated"] else ""
        click.echo(f"{words}  {one['decision']}".rstrip())
    for member in status["members"]:
        click.echo(f"  {_line(member)}")
    if status["fault"]:
        click.echo(f"the controller has a fault: {status['fault']}")


@ray_group.command("scale")
@click.argument("name", metavar="ENGINES")
@click.argument("bounds", metavar="LEAST..MOST")
@_address
@_wait_option
def scale(name: str, bounds: str, address: str, seconds: float) -> None:
    """Set how many engines of a name there may be, as 2..8, or workers of a pool, as 3, until the next `up`."""
    least, dots, most = bounds.partition("..")
    most = most if dots else least
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise click.BadParameter(f"must be as 2..8 or 3, and at least 1, not {bounds!r}", param_hint="LEAST..MOST")
    with _connected(address) as ray:
        link = ControllerLink(ray)
        link.call("scale", name, int(least), int(most))
        click.echo(f"{name} may have from {least} to {most}")
        _settle(link, seconds)


@ray_group.command("down")
@_address
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(1),
    default=UP_TIME,
    show_default=True,
    help="seconds until all has ended",
)
def down(address: str, seconds: float) -> None:
    """Drain and end everything: fronts first, then engines and pools, then the controller."""
    with _connected(address) as ray:
        link = ControllerLink(ray)
        link.call("down")
        if not _wait(link, lambda status: not status["members"], seconds):
            raise click.ClickException(f"not all had ended within {seconds:g} s; it goes on: corosrv ray status")
        link.end()
