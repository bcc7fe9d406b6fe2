"""Runs a test's function in a process whose sockets wait through gevent, as those of a server do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent.parent
_PROGRAM = """
from gevent import monkey
monkey.patch_all()
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""


def run_patched(function: Callable[..., Any], *arguments: Any, timeout: float = 60) -> Any:
    """Calls a function of a module and returns what it returns; both, and the arguments, are JSON."""
    call = json.dumps([function.__module__, function.__name__, arguments])
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, call], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])
