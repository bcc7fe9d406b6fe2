"""The lines of `corosrv top`, made from frames, and what becomes of a server that sends something else."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from corosrv.base.errors import Misuse
from corosrv.client.top import LiveScreen, NoLivePicture, run
from tests.support.file_server import Answer, content, serving
from tests.web.live.frames import engine, frame

ESCAPE = "\x1b]0;owned\x07"


def shown(width: int = 120, height: int = 100, has_colours: bool = False, **members: Any) -> list[str]:
    screen = LiveScreen("server:1", has_colours)
    return screen.lines({"time": 0.0} | frame(engines=[engine(model="tiny")]) | members, width, height)


def test_lines_say_what_slots_do():
    lines = shown()

    assert "tiny: 3 of 4 slots in use, nothing waits" in lines
    assert any(re.match(r"slot 0 +decoding 12 tokens +█$", line) for line in lines)
    assert any(re.match(r"slot 1 +reads 300 of 900 +▒$", line) for line in lines)
    assert any(re.match(r"slot 2 +paused 80 tokens +▚$", line) for line in lines)
    assert any(re.match(r"slot 3 +idle +·$", line) for line in lines)


def test_lines_say_what_a_step_does():
    (line,) = [line for line in shown() if line.startswith("steps")]

    assert "40/s, 20.0 ms each: 2.0 streams write, 50 tokens of prompts" in line


def test_a_lane_grows_with_each_frame():
    screen = LiveScreen("server", False)
    for _ in range(5):
        lines = screen.lines({"time": 0.0} | frame(), 100, 100)

    assert any(line.startswith("slot 0") and line.endswith("█████") for line in lines)


def test_queues_pools_upstreams_and_others_have_a_line_each():
    lines = shown(
        queues=[{"of": "handlers", "key": "add", "state": "READY", "depth": 3, "max_depth": 9, "in_flight": 1,
                 "permits": 1, "classes": {"5": 3}, "oldest": 1.5}],
        pools=[{"name": "app", "min": 1, "max": 2, "target": 1, "workers": {"ready": 1}, "permits": 1, "in_flight": 1,
                "depth": 3, "restarts": 0}],
        upstreams=[{"id": "u1", "state": "open", "in_flight": 0, "concurrency": 4, "ok": 1, "failed": 9}],
        encoders=[{"model": "tiny", "state": "up", "active": 1, "queued": 2, "free_blocks": 1, "blocks": 2}],
        predictor={"state": "ready", "free": 1, "busy": 0, "running": 0, "restarts": 0},
        grpc={"state": "READY", "streams": 2, "calls": 7},
        models=[{"id": "big", "state": "downloading", "progress": {"bytes": 1, "total": 4}}],
    )  # fmt: skip

    text = "\n".join(lines)
    assert "add: 3 wait (3 of class 5), the first for 1.5 s; 1 of 1 permits in use" in text
    assert "app: 1 ready; 0 restarts" in text
    assert "u1: open, runs 0 of 4, 1 answered, 9 failed" in text
    assert "tiny: up, 1 run, 2 wait" in text
    assert "READY, 2 streams, 7 calls" in text
    assert "big: downloading, 25 %" in text


@pytest.mark.parametrize("has_colours", [False, True])
def test_no_line_is_wider_than_the_terminal_and_no_more_are_shown(has_colours: bool):
    lines = shown(width=40, height=7, has_colours=has_colours)

    assert len(lines) == 7
    assert all(len(re.sub(r"\x1b\[[0-9]*m", "", line)) <= 40 for line in lines)
    assert has_colours is any("\x1b" in line for line in lines)


def once(answer: Answer, key: str = "") -> str:
    out = io.StringIO()
    with serving() as server:
        server.answers = {"/v1/live": answer}
        run(server.url, key, is_single=True, out=out)
    return out.getvalue()


def test_what_would_steer_a_terminal_is_not_printed():
    hostile = {"time": 0.0} | frame(engines=[engine(model=f"tiny{ESCAPE}")], models=[{"id": ESCAPE, "state": ESCAPE}])

    printed = once(content(json.dumps(hostile).encode()))

    assert "tiny?]0;owned?: 3 of 4 slots" in printed
    assert not set(printed) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"hub": 1, "http": 2, "time": "x"}', b'{"hub": {}, "http": {}}']
)
def test_what_is_no_frame_is_told_so(body: bytes):
    with pytest.raises(NoLivePicture, match="what came is no frame"):
        once(content(body))


def test_a_refusal_is_told_with_its_reason():
    words = json.dumps({"error": {"message": f"a key is needed{ESCAPE}"}}).encode()

    with pytest.raises(NoLivePicture, match=r"answers 401: a key is needed\?\]0;owned\?") as caught:
        once(lambda handler: handler.reply(401, words))
    assert not caught.value.may_retry


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(NoLivePicture, match=r"no answer from 127\.0\.0\.1:1: "):
        run("http://127.0.0.1:1", "", is_single=True, out=io.StringIO())


def test_an_address_that_is_none_is_refused():
    with pytest.raises(Misuse, match="url must be http"):
        run("127.0.0.1:8080", "", is_single=True, out=io.StringIO())
