"""Parts that compute without I/O load no web framework, no hub and no native core."""

import subprocess
import sys

import pytest

from tests.test_layers import MODULES

# Modules of the dialects that are for HTTP, describe its routes, or wait for a job.
WITH_IO = (
    "api_docs", "background", "buffered", "embeddings", "exchange", "loading", "mcp_client",
    "mcp_rounds", "metrics", "rerank", "routes", "runner", "running", "slots",
)  # fmt: skip
ROOMS = (
    "anthropic",
    "bodies",
    "chat",
    "errors",
    "generation",
    "idempotency",
    "jobs",
    "llamacpp",
    "ollama",
    "openai",
    "processor",
    "structured",
)

PROGRAM = """
import importlib, sys
importlib.import_module({module!r})
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{"flask", "gevent", "gunicorn", "werkzeug"}}))
print(*(name for name in sys.modules if name in ("corosrv._native", "corosrv.models.engine")))
"""


def is_pure(module: str) -> bool:
    parts = module.split(".")
    return len(parts) > 2 and parts[2] in ROOMS and parts[-1] not in WITH_IO


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_without_io_loads_no_framework_no_hub_and_no_native_core(room: str):
    modules = [name for name in MODULES if is_pure(name) and name.split(".")[2] == room]
    program = "\n".join(PROGRAM.format(module=name) for name in modules)

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert modules
    assert not loaded.stdout.split()
