"""The server's side of a download: a process that does it, and how far it is. No greenlet waits for the disk or net."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from corosrv.base.errors import HubError, SettingsError
from corosrv.base.waits import TimedOut, call_in_thread, wait_readable
from corosrv.contracts.settings import HubSettings, ModelSettings, child_environment
from corosrv.contracts.settings import model_list as hub_name
from corosrv.models.hub.client import Pulled, PulledModel, PullFailed, PullMessage, PullProgress, decoder
from corosrv.workers.worker.parent.process import plain_subprocess

log = logging.getLogger("corosrv.hub")

SILENCE = 300.0  # seconds without a word after which the process is ended
LOG_PAUSE = 10.0  # seconds between two lines of the log
_READ = 65_536  # bytes


class HubDownload:
    """Downloads one model in a process of its own. run() is called once; the rest at any time, from any thread."""

    def __init__(self, settings: ModelSettings, hub: HubSettings) -> None:
        """Raises SettingsError for a model that is not named on a hub."""
        self._settings = settings
        self._name = hub_name.parse_hub_name(settings.model)
        self._hub = hub
        self._popen: Any = None
        self._is_cancelled = False
        self._progress = PullProgress()

    @property
    def bytes(self) -> int:
        """Returns the bytes that are there."""
        return self._progress.bytes

    @property
    def total(self) -> int:
        """Returns the bytes of all files; 0 before the hub has answered."""
        return self._progress.total

    @property
    def words(self) -> str:
        """Returns how far it is, as people read it."""
        return str(self._progress)

    def run(self) -> ModelSettings:
        """Downloads what is not in the cache; returns the settings with the files in place of the name.

        Waits, for as long as it takes. Raises HubError.
        """
        try:
            self._popen = self._start()
        except OSError as error:
            raise HubError(f"the process that downloads models could not be started: {error}") from error
        if self._is_cancelled:  # while the process began
            self._popen.kill()
        try:
            model = self._follow()
        finally:
            self._end()
        self._log_end(model)
        return self._with_files(model)

    def cancel(self) -> None:
        """Ends the download; what is there stays, and the next one goes on with it. Does not wait."""
        self._is_cancelled = True
        if self._popen is not None:
            self._popen.kill()

    def _start(self) -> Any:
        command = [sys.executable, "-m", "corosrv.models.hub", self._settings.model]
        if not self._settings.mmproj_auto or self._settings.mmproj:
            command.append("--no-mmproj")
        pipe = plain_subprocess.PIPE
        return plain_subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=self._environment(), start_new_session=True
        )  # fmt: skip

    def _environment(self) -> Mapping[str, str]:
        environment = child_environment()
        if self._hub.hf_token:
            environment["COROSRV_HF_TOKEN"] = self._hub.hf_token
        environment["COROSRV_OFFLINE"] = str(int(self._hub.offline))
        return environment

    def _follow(self) -> PulledModel:
        logged_at = time.monotonic()
        log.info("model %s: looking for it on the hub", self._name.id)
        for message in self._messages():
            match message:
                case Pulled():
                    return message.model
                case PullFailed():
                    raise HubError(message.reason)
            self._progress = message
            if time.monotonic() - logged_at >= LOG_PAUSE:
                logged_at = time.monotonic()
                log.info("model %s: downloading, %s", self._name.id, message)
        if self._is_cancelled:
            raise HubError("the download was stopped; the next one goes on where it was")
        raise HubError("the process that downloads models ended without a word; the next try goes on where it was")

    def _messages(self) -> Iterator[PullMessage]:
        """Yields what the process says until it ends. Waits; raises HubError when it says nothing for too long."""
        fd, rest = self._popen.stdout.fileno(), b""
        os.set_blocking(fd, False)
        while True:
            try:
                wait_readable(fd, SILENCE)
            except TimedOut:
                raise HubError(f"the download made no progress for {SILENCE:g} s; the next try goes on there") from None
            try:
                read = os.read(fd, _READ)
            except BlockingIOError:
                continue
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                try:
                    yield decoder.decode(line)
                except msgspec.MsgspecError:
                    log.warning("the process that downloads models printed %r", line[:200])

    def _end(self) -> None:
        popen = self._popen
        popen.kill()
        call_in_thread(popen.wait)  # at once: it was killed
        popen.stdin.close()
        popen.stdout.close()

    def _log_end(self, model: PulledModel) -> None:
        if model.offline:
            log.warning("model %s: the files in the cache are used, for %s", self._name.id, model.offline)
        log.info(
            "model %s: %d files of commit %s, %.0f MB, in %s",
            self._name.id, model.n_files, model.commit[:12], model.size / 1e6, os.path.dirname(model.model),
        )  # fmt: skip

    def _with_files(self, model: PulledModel) -> ModelSettings:
        settings = self._settings
        try:
            return replace(
                settings,
                model=model.model,
                model_alias=",".join(settings.names),
                mmproj=settings.mmproj or model.mmproj,
            )
        except SettingsError as error:
            raise HubError(str(error)) from error
