"""Checks the machine, and advises on what is wrong."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from corosrv.base.errors import CorosrvError
from corosrv.contracts.settings import ModelSettings, Settings, unknown_variables, with_nearest
from corosrv.models.fitting.model_file import flaw_of
from corosrv.web.http import worker_watch

Load = Callable[[], Settings]


class Grade(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `advice` says what to do, and is empty if nothing has to be done."""

    grade: Grade
    subject: str
    text: str
    advice: str = ""

    @property
    def is_fatal(self) -> bool:
        return self.grade is Grade.FAIL


def examine(load: Load, host: str, port: int) -> Iterator[Finding]:
    """Makes the findings one after the other, in the order in which a server needs things.

    Takes seconds: each model is tried in a child process and loaded.
    """
    for check in (_compiler, _libllama, _devices, _cpu):
        yield check()
    try:
        settings = load()
    except CorosrvError as error:
        yield Finding(Grade.FAIL, "settings", str(error))
    else:
        yield _settings()
        for model in settings.models:
            yield from _model(model)
    yield _descriptors()
    yield _port(host, port)


def _compiler() -> Finding:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        from corosrv.models.engine.libllama import BUNDLE

        if BUNDLE.is_dir():
            return Finding(Grade.OK, "compiler", "none found, and none needed: this wheel has libllama inside")
        return Finding(
            Grade.WARN, "compiler", "none found", "install a C++17 compiler (Debian: apt-get install g++) to rebuild"
        )
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    first = version.splitlines()[0] if version else compiler
    if _miscompiles_amx(version) and "amx_tile" in _cpu_flags():
        return Finding(
            Grade.WARN,
            "compiler",
            f"{first}: miscompiles the AMX kernels that this processor runs",
            'build llama-cpp-python with CXXFLAGS="-fno-strict-aliasing -fno-tree-dse -fno-dse" (make install does)',
        )
    return Finding(Grade.OK, "compiler", first)


def _miscompiles_amx(version: str) -> bool:
    match = re.search(r"\b(\d+)\.(\d+)\.\d+\b", version)
    if match is None or "clang" in version:
        return False
    major, minor = int(match.group(1)), int(match.group(2))
    return major < 12 or (major, minor) in ((12, 0), (12, 1), (12, 2), (12, 3), (13, 0), (13, 1), (13, 2))


def _libllama() -> Finding:
    try:
        from corosrv.models.engine import libllama
        from corosrv.models.engine.binding import FINGERPRINT
    except CorosrvError as error:
        return Finding(Grade.FAIL, "libllama", str(error), "in a clone: make install")
    text = f"{libllama.folder()}, headers {FINGERPRINT[:10]} as built, {libllama.kernel_library()}"
    return Finding(Grade.OK, "libllama", text)


def _devices() -> Finding:
    try:
        from corosrv.models.engine import libllama

        devices = libllama.devices()
    except (CorosrvError, OSError, AttributeError) as error:
        return Finding(Grade.FAIL, "devices", str(error), "in a clone: make install")
    return Finding(Grade.OK, "devices", "; ".join(f"{device.name} ({device.description})" for device in devices))


def _cpu_flags() -> str:
    from corosrv.models.engine.libllama import cpu_identity

    return cpu_identity()


def _cpu() -> Finding:
    from corosrv.models.engine.libllama import physical_cores

    identity = _cpu_flags()
    name = re.search(r"model name: ([^;]*)", identity)
    known = "avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_tile"
    fast = [flag for flag in known if re.search(rf"\b{flag}\b", identity)]
    text = (
        f"{name.group(1) if name else 'unknown'}, {physical_cores()} cores, {' '.join(fast) or 'no vector units known'}"
    )
    return Finding(Grade.OK, "processor", text)


def _settings() -> Finding:
    """Looks for variables that look like settings and are none."""
    if unknown := unknown_variables(os.environ):
        advice = "look for the right name with corosrv serve --help"
        return Finding(
            Grade.WARN, "settings", f"unknown settings, ignored: {', '.join(map(with_nearest, unknown))}", advice
        )
    return Finding(Grade.OK, "settings", "all are valid")


def _model(settings: ModelSettings) -> Iterator[Finding]:
    if settings.is_synthetic:
        yield Finding(Grade.WARN, "model", "synthetic: its text is made up", "set COROSRV_MODEL to a GGUF for real use")
        return
    if settings.is_hub:
        yield _hub(settings)
        return
    path = Path(settings.model)
    if flaw := flaw_of(path):
        what, _, advice = flaw.partition(": ")
        yield Finding(Grade.FAIL, "model", f"{path} {what}", advice)
        return
    yield Finding(Grade.OK, "model", f"{path.name}, {path.stat().st_size / 1e6:.0f} MB")
    yield _memory(settings)
    yield _engine(settings)
    if settings.mmproj:
        yield _projector(settings)


def _hub(settings: ModelSettings) -> Finding:
    """Looks whether a model of a hub can be asked for; downloads nothing."""
    from corosrv.models.hub import cache

    try:
        cache.check_installed()
    except CorosrvError as error:
        return Finding(Grade.FAIL, "model", str(error), "pip install 'corosrv[hub]'")
    advice = f"corosrv models pull {settings.model}; then try the path that it prints with --model"
    return Finding(Grade.OK, "model", f"{settings.model}, which is downloaded at the start", advice)


def _memory(settings: ModelSettings) -> Finding:
    """Plans the memory as the engine would when it starts."""
    from corosrv.models.engine.memory import fit_model

    try:
        return Finding(Grade.OK, "memory", fit_model(settings).words or "not known: the file is no GGUF")
    except CorosrvError as error:
        return Finding(Grade.FAIL, "memory", str(error), "or leave COROSRV_SLOTS and COROSRV_CTX out")


def _engine(settings: ModelSettings) -> Finding:
    """Opens the engine as it would be served, and gives one answer."""
    from corosrv.contracts.jobs import Job, Text
    from corosrv.models.engine import Engine, probe

    engine = Engine(settings)
    try:
        engine.open()
        with engine.submit(Job((Text("One, two,"),), max_tokens=4)) as reader:
            text = "".join(chunk.text for chunk in reader)
        kernels = engine.info.kernels
        if engine.verdict is probe.Verdict.GGML:
            return Finding(
                Grade.WARN,
                "engine",
                "corosrv's own kernels fail on this machine, so libllama computes everything; the log has the reason",
                "report this, with the output of corosrv doctor",
            )
        if engine.verdict is probe.Verdict.SAFE:
            return Finding(
                Grade.WARN,
                "engine",
                "libllama crashes on this processor with repacked weights, so it runs without them, which is slow",
                f"rebuild it: {probe.REBUILD}",
            )
    except CorosrvError as error:
        return Finding(Grade.FAIL, "engine", str(error))
    finally:
        engine.close()
    return Finding(Grade.OK, "engine", f"answers 'One, two,' with {text!r}; {kernels}")


def _projector(settings: ModelSettings) -> Finding:
    """Opens the projector as the encoder process would, in one of its own, and encodes a small image."""
    from corosrv.images.encoder.check import check_projector
    from corosrv.images.vision.engine import encoder_command

    path = Path(settings.mmproj)
    if not path.is_file():
        return Finding(
            Grade.FAIL, "projector", f"{path} does not exist", "set COROSRV_MMPROJ to the path of a GGUF file"
        )
    command = encoder_command(settings)
    try:
        report = check_projector(command.model, command.mmproj, command.n_threads, command.supports)
    except CorosrvError as error:
        advice = "take the mmproj file that belongs to this model, and compare its SHA-256 with the publisher's"
        return Finding(Grade.FAIL, "projector", str(error), advice)
    needs = "M-RoPE, " * report.is_mrope + "not causal, " * report.is_non_causal
    text = (
        f"{path.name}, {path.stat().st_size / 1e6:.0f} MB, {report.kind}, {needs}rows as wide as the model's; "
        f"a small image became {report.n_rows} of them in {report.seconds:.2f} s"
    )
    return Finding(Grade.OK, "projector", text)


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 20_000:
        return Finding(
            Grade.WARN,
            "descriptors",
            f"the limit of open files is {hard}, enough for about {max(hard // 2 - 100, 1)} streams",
            "raise the hard limit (ulimit -Hn, LimitNOFILE= in a systemd unit)",
        )
    return Finding(
        Grade.OK, "descriptors", f"the limit of open files is {hard}" if hard != resource.RLIM_INFINITY else "no limit"
    )


def _port(host: str, port: int) -> Finding:
    if (fault := worker_watch.fault(host, port)) is not None:
        return Finding(Grade.FAIL, "port", f"{host}:{port}: {fault}", "choose another one with --port")
    return Finding(Grade.OK, "port", f"{host}:{port} is free")
