"""What a front imports, and when: at its start what its settings ask for, and nothing while it answers requests."""

import subprocess
import sys
from pathlib import Path

from tests.support.mcp_server import TOKEN, serving_mcp

MOST_MODULES = 600  # 557 with Python 3.11
NOT_ASKED_FOR = (
    "chat", "delegation", "dispatch", "engine", "forwarding", "manager", "predictions", "upstreams", "worker"
)  # fmt: skip

FRONT = """
import sys
import corosrv.app
print(len(sys.modules))
print(*sys.modules)
"""

REQUESTS = """
import gevent.monkey
gevent.monkey.patch_all()
import os, sys
import gevent
from corosrv.contracts import settings
from corosrv.app import create_app

app = create_app(settings.load({"model": "synthetic:?length=4"}, environ={}))
client = app.test_client()
with gevent.Timeout(30):
    while client.get("/health").status_code != 200:
        gevent.sleep(0.01)
before = set(sys.modules)
chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
answers = [client.get(path) for path in ("/v1/models", "/metrics", "/", "/openapi.json", "/props", "/slots", "/v2")]
answers += [client.get(path) for path in ("/api/tags", "/api/ps", "/api/version")]
answers += [
    client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3}),
    client.post("/v1/chat/completions", json=chat),
    client.post("/v1/chat/completions", json=chat | {"stream": True}),
    client.post("/v1/chat/completions", json=chat | {"response_format": shape}),
    client.post("/v1/messages", json=chat),
    client.post("/v1/responses", json={"input": "hi"}),
    client.post("/completion", json={"prompt": "hi", "n_predict": 3}),
    client.post("/v2/models/synthetic/generate", json={"text_input": "hi"}),
    client.post("/api/chat", json={"model": "synthetic", **chat, "format": "json", "stream": False}),
    client.post("/api/generate", json={"model": "synthetic", "prompt": "hi", "keep_alive": "5m"}),
    client.post("/api/show", json={"model": "synthetic"}),
]
print(*(answer.status_code for answer in answers))
print(*(name for name in set(sys.modules) - before if name.partition(".")[0] in ("corosrv", "mcp")))
sys.stdout.flush()
os._exit(0)
"""

MCP = """
import gevent.monkey
gevent.monkey.patch_all()
import os, sys
import gevent
from corosrv.contracts import settings
from corosrv.app import create_app

url, token = sys.argv[1:]
app = create_app(settings.load({"model": "synthetic:?length=4", "mcp_servers": url}, environ={}))
print(*sys.modules)
client = app.test_client()
tool = {"type": "mcp", "server_label": "calc", "server_url": url, "authorization": token, "allowed_tools": ["add"]}
tool |= {"require_approval": "never"}
asked = {"input": "2+3?", "tools": [tool], "tool_choice": "none"}
before = set()
with gevent.Timeout(60):
    while client.get("/health").status_code != 200:
        gevent.sleep(0.01)
    before = set(sys.modules)
    while client.post("/v1/responses", json=asked).status_code != 200:  # as long as the MCP server starts
        gevent.sleep(0.1)
print(*set(sys.modules) - before)
sys.stdout.flush()
os._exit(0)
"""


def lines_of(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return ended.stdout.split("\n")


def test_a_front_imports_only_what_every_server_needs():
    count, names, *_ = lines_of(FRONT)

    assert int(count) <= MOST_MODULES
    rooms = {name.split(".")[2] for name in names.split() if name.startswith("corosrv.") and name.count(".") > 1}
    assert rooms & set(NOT_ASKED_FOR) == set()


def test_no_request_waits_for_an_import():
    statuses, imported, *_ = lines_of(REQUESTS)

    assert set(statuses.split()) == {"200"}
    assert imported == ""


def test_the_mcp_package_is_imported_before_requests_where_there_are_servers(tmp_path: Path):
    with serving_mcp(tmp_path) as port:
        at_start, later, *_ = lines_of(MCP, f"http://127.0.0.1:{port}/mcp", TOKEN)

    assert "mcp.client.streamable_http" in at_start.split()
    assert {name for name in later.split() if not name.startswith(("encodings", "gevent"))} == set()
