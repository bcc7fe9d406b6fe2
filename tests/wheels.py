"""Tries a built wheel with each supported Python at hand: installs it into a new environment, serves, chats, stops.

`python -m tests.wheels dist` is the second half of `make dist`. The wheel of libllama comes from pip's cache, where the
build has left it, so that nothing is compiled twice. Exits with 1 where a Python could not serve; one that is not at
hand is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")  # those of setup.cfg
REPOSITORY = Path(__file__).parent.parent
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


def libllama_wheel(folder: Path) -> Path:
    """Makes the wheel of libllama in a folder, from pip's cache."""
    sys.path.insert(0, str(REPOSITORY / "native"))
    import libllama

    return libllama.build_wheel(libllama.build_options({}), folder)


def try_wheel(python: str, wheel: Path, libllama: Path, folder: Path) -> str:
    """Installs and serves; returns what the server answered. Raises CalledProcessError, TimeoutError or OSError."""
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=INSTALL)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(libllama), str(wheel)], check=True, timeout=INSTALL, cwd=folder)
    log = folder / "server.log"
    with log.open("w") as written:
        server = subprocess.Popen(
            [str(environment / "bin" / "corosrv"), "serve", "--model", "synthetic:", "--port", "0"],
            cwd=folder, stdout=written, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        return chat(address_in(log, server))
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
        libllama = libllama_wheel(Path(place))
        for version in VERSIONS:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: not at hand", flush=True)
                continue
            folder = Path(tempfile.mkdtemp(dir=place))
            began = time.monotonic()
            try:
                text = try_wheel(python, wheel, libllama, folder)
                print(f"Python {version}: serves after {time.monotonic() - began:.0f} s, says {text!r}", flush=True)
            except (subprocess.SubprocessError, TimeoutError, OSError) as error:
                failed = True
                print(f"Python {version}: {error}", flush=True)
    os._exit(1) if failed else None


if __name__ == "__main__":
    main()
