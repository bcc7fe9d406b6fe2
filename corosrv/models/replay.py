"""The command `corosrv replay`: gives an engine what a recording says reached another one, and compares the two."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
import msgspec

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError, ModelFailed
from corosrv.models.recording import RecordingHead, digest_of, read_head

_PAUSE = 0.02  # seconds between two looks at how far it is


@dataclass(frozen=True, slots=True)
class Replayed:
    """Counts what a replay had, and what of it differed from the recording."""

    steps: int
    steps_differ: int
    texts: int
    texts_differ: int

    @property
    def is_same(self) -> bool:
        return self.steps_differ == self.texts_differ == 0

    def __str__(self) -> str:
        words = "all as recorded" if self.is_same else f"{self.steps_differ} and {self.texts_differ} of them differ"
        return f"{self.steps} steps and {self.texts} texts replayed: {words}"


def replay_file(
    path: str,
    say: Callable[[str], object],
    *,
    model: str = "",
    last_step: int = 0,
    tells: int = 0,
    is_forced: bool = False,
) -> Replayed:
    """Replays a recording, and says what differs. Waits.

    `model`: its file, where that lies elsewhere now. `last_step`: 0: all. `tells`: 1 for a line of each
    step, 2 for each text, 3 for both. `is_forced`: also with another build, where the steps may differ. Raises
    ModelFailed.
    """
    from corosrv.models.engine.binding import NativeEngine, Options

    head = read_head(path)
    try:
        options = msgspec.convert(head.options, Options)
    except msgspec.ValidationError as error:
        raise ModelFailed(f"the head of {path} is damaged: {error}") from error
    if options.synthetic is None:
        options = msgspec.structs.replace(options, model=model or options.model)
    elif model:
        raise ModelFailed("the recording is of a synthetic model, which has no file: leave out --model")
    _check(head, options.model, options.adapters, say, is_forced=is_forced)
    with _opened(path) as fd:
        wanted = msgspec.structs.replace(options, record_fd=0, replay_fd=fd, replay_until=last_step, replay_tells=tells)
        try:
            engine = NativeEngine(wanted)
        except CorosrvError as error:
            raise ModelFailed(f"{path}: {error}") from error
        except (KeyError, OverflowError) as error:
            raise ModelFailed(f"the head of {path} is damaged: no engine has such an option: {error}") from error
    try:
        return _follow(engine, say)
    finally:
        engine.close()


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelFailed(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _check(
    head: RecordingHead, model: str, adapters: tuple[str, ...], say: Callable[[str], object], *, is_forced: bool
) -> None:
    """Raises ModelFailed where this machine would compute something else."""
    from corosrv.models.engine.binding import FINGERPRINT
    from corosrv.models.engine.libllama import cpu_identity

    for file, digest in zip((model, *adapters), head.digests, strict=False):
        try:
            is_same = digest_of(file) == digest
        except OSError as error:
            raise ModelFailed(f"{file} cannot be read: {error.strerror}; name the model's file with --model") from error
        if not is_same:
            raise ModelFailed(f"{file} is not the file that was recorded with: name that one with --model")
    builds = {"corosrv": (head.corosrv, __version__), "libllama": (head.libllama[:10], FINGERPRINT[:10])}
    for name, (recorded, here) in builds.items():
        if recorded == here:
            continue
        words = f"the recording is of {name} {recorded}, and this is {here}"
        if not is_forced:
            raise ModelFailed(f"{words}: replay it with that one, or add --force")
        say(f"corosrv: {words}: steps may differ")
    if head.processor != cpu_identity():
        say("corosrv: the recording is of another processor: numbers may be rounded otherwise, and texts differ")


def _follow(engine: object, say: Callable[[str], object]) -> Replayed:
    from corosrv.models.engine.binding import NativeEngine

    assert isinstance(engine, NativeEngine)
    while True:
        state, reason = engine.state()
        counts, lines, is_over = engine.replayed()
        if lines:
            say(lines.rstrip("\n"))
        if is_over or state in ("failed", "stopped"):
            break
        time.sleep(_PAUSE)
    if state == "failed":
        raise ModelFailed(reason)
    return Replayed(*counts)


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--model", "-m", default="", metavar="PATH", help="the model's file, where it lies elsewhere now")
@click.option(
    "--until", "last_step", default=0, metavar="STEP", type=click.IntRange(0, 2**62), help="the last step; 0: all"
)
@click.option("--steps", "shows_steps", is_flag=True, help="print a line for each step, batch and text")
@click.option("--texts", "shows_texts", is_flag=True, help="print each text as it ends: what users got")
@click.option("--force", "is_forced", is_flag=True, help="also with another build, where steps may differ")
def replay(file: str, model: str, last_step: int, shows_steps: bool, shows_texts: bool, is_forced: bool) -> None:
    """Replay FILE, which corosrv serve --record has written, and compare each step and text with it.

    Ends with 1 where something differs.
    """
    try:
        tells = int(shows_steps) + 2 * int(shows_texts)
        done = replay_file(file, click.echo, model=model, last_step=last_step, tells=tells, is_forced=is_forced)
    except ModelFailed as error:
        click.echo(f"corosrv: {error}", err=True)
        sys.exit(2)
    click.echo(done)
    sys.exit(0 if done.is_same else 1)
