"""What a front imports, and when: at its start what its settings ask for, and nothing while it answers requests."""

import subprocess
import sys

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
print(*(name for name in set(sys.modules) - before if name.startswith("corosrv")))
sys.stdout.flush()
os._exit(0)
"""


def lines_of(program: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
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
