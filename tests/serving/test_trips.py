"""Measures a request's trip: own functions called, the modules that they are in, and how often the module changes.

Numbers here only fall. `python -m tests.serving.test_trips` prints them.
"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gevent.monkey
gevent.monkey.patch_all()
import json, os, sys
import gevent
import corosrv
from corosrv.app import create_app
from corosrv.contracts import settings

HOME = os.path.dirname(corosrv.__file__)
SHAPE = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
    "a": {"type": "integer"}}, "required": ["a"]}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TRIPS = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat with a format": ("/v1/chat/completions", CHAT | {"response_format": SHAPE}),
    "message": ("/v1/messages", CHAT),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    "completion": ("/v1/completions", {"prompt": "hi", "max_tokens": 1}),
}

app = create_app(settings.load({"model": "synthetic:?length=1"}, environ={}))
client = app.test_client()
with gevent.Timeout(30):
    while client.get("/health").status_code != 200:
        gevent.sleep(0.01)

def measure(path, body):
    files = []
    def follow(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            files.append(frame.f_code.co_filename)
    sys.setprofile(follow)
    try:
        answer = client.post(path, json=body)
    finally:
        sys.setprofile(None)
    assert answer.status_code == 200, answer.text
    return len(files), len(set(files)), sum(a != b for a, b in zip(files, files[1:]))

found = {}
for name, (path, body) in TRIPS.items():
    # The first compile and learn. Later ones differ by what ends meanwhile of those before.
    found[name] = min([measure(path, body) for _ in range(8)][3:])
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""

# Calls of own functions, and modules that they are in.
MOST = {
    "chat": (245, 40),
    "chat with a format": (344, 47),
    "message": (263, 39),
    "response": (314, 44),
    "completion": (226, 37),
}


def measured() -> dict[str, list[int]]:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, list[int]] = json.loads(ended.stdout)
    return found


def test_no_request_travels_further_than_before():
    found = measured()

    assert set(found) == set(MOST)
    assert {
        name: (n_calls, n_modules)
        for name, (n_calls, n_modules, _) in found.items()
        if n_calls > MOST[name][0] or n_modules > MOST[name][1]
    } == {}


if __name__ == "__main__":
    for name, (n_calls, n_modules, n_changes) in measured().items():
        print(f"{name}: {n_calls} calls in {n_modules} modules, {n_changes} changes of module")
