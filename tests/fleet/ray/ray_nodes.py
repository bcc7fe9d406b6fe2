"""A Ray cluster of raylets on this machine, and corosrv's commands on it, each in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

BIN = Path(sys.executable).parent
START_SECONDS = 120.0  # for a raylet, and for what is placed on it; a busy machine included
_QUIET = ("--node-ip-address", "127.0.0.1", "--object-store-memory", "80000000", "--disable-usage-stats", "--block")
# Ports that the system chooses: by default workers have a range, which another cluster of this machine may use.
_PORTS = ("--min-worker-port", "0", "--max-worker-port", "0", "--include-log-monitor", "false")

# Runs commands in one process that stays connected: a start and Ray's handshake take seconds each time. Ray must not
# tell of nodes that die between the lines of an answer.
_COMMANDS = """
import json, sys, ray
from click.testing import CliRunner
from corosrv.cli import main
ray._private.worker.print_to_stdstream = lambda *told, **how: None
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    result = CliRunner().invoke(main, ["ray", *json.loads(line), "--address", sys.argv[1]])
    print(json.dumps([result.exit_code, result.output if result.exit_code else result.stdout]), flush=True)
"""


class RayNodes:
    """A head and further raylets. Whoever makes it closes it."""

    def __init__(self, n_raylets: int, cpus: int, **settings: str) -> None:
        """`settings`: of Ray, as variables of the environment without RAY_."""
        self._folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
        self._environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "PYTHONUNBUFFERED": "1"}
        self.temporary = self.folder / "tmp"  # of all that runs on the nodes
        self.temporary.mkdir()
        self._environ |= {"TMPDIR": str(self.temporary)}
        self._environ |= {f"RAY_{name}": value for name, value in settings.items()}
        self._commands: subprocess.Popen[str] | None = None
        self._nodes: list[subprocess.Popen[bytes]] = []
        head = ("--head", "--port", "0", "--include-dashboard", "false", "--temp-dir", str(self.folder / "ray"))
        try:
            log = self._start(*head, "--num-cpus", str(cpus))
            found = eventually(lambda: re.search(r"--address='([\d.:]+)'", log.read_text()), START_SECONDS, "a head")
            self.address = found[1]
            for _ in range(n_raylets - 1):  # one after the other: two at once may choose the same port
                log = self._start("--address", self.address, "--num-cpus", str(cpus))
                eventually(lambda log=log: "Ray runtime started" in log.read_text(), START_SECONDS, "a raylet")
        except BaseException:
            self.close()
            raise

    def _start(self, *words: str) -> Path:
        log = self.folder / f"node{len(self._nodes)}.log"
        with log.open("wb") as out:
            command = [str(BIN / "ray"), "start", *_QUIET, *_PORTS, *words]
            node = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self._nodes.append(node)
        return log

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of `corosrv ray` to its end."""
        command = [str(BIN / "corosrv"), "ray", *words, "--address", self.address]
        return subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=2 * START_SECONDS, check=False
        )

    def ask(self, *words: str) -> tuple[int, str]:
        """Runs a command in the process that stays connected; returns its status and output."""
        if self._commands is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            command = [sys.executable, "-c", _COMMANDS, self.address]
            self._commands = subprocess.Popen(command, env=self._environ, **pipes)
        assert self._commands.stdin is not None
        assert self._commands.stdout is not None
        self._commands.stdin.write(json.dumps(words) + "\n")
        self._commands.stdin.flush()
        code, output = json.loads(self._commands.stdout.readline())
        return int(code), str(output)

    def must(self, *words: str) -> str:
        code, output = self.ask(*words)
        assert code == 0, output
        return output

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.must("status", "--json")))

    @property
    def head_raylet(self) -> int:
        """The process that starts actors on the head's node."""
        started = Path(f"/proc/{self._nodes[0].pid}/task/{self._nodes[0].pid}/children").read_text().split()
        return next(int(pid) for pid in started if Path(f"/proc/{pid}/comm").read_text() == "raylet\n")

    def close(self) -> None:
        """Ends the raylets, and with them all that they run."""
        if self._commands is not None:
            with self._commands:
                self._commands.kill()
        for node in reversed(self._nodes):
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        self._folder.cleanup()
