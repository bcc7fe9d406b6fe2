"""Rows 67 and 69: jobs that wait too long for a slot, and readers that nobody reads."""

from __future__ import annotations

import time
from contextlib import ExitStack

from tests.serve.server import Server, Servers
from tests.serve.wire import chat, events, request
from tests.support.waiting import eventually


def hold_the_slot(server: Server, open_ones: ExitStack) -> None:
    connection = open_ones.enter_context(server.connect())
    connection.send(request("POST", "/v1/chat/completions", chat(stream=True, max_tokens=4000)))
    server.wait_metric("running", 1)


def test_h069_a_job_that_waits_too_long_is_told_when_to_come_back(start: Servers) -> None:
    server = start.start(slots=1, queue_timeout_s=1)
    with ExitStack() as open_ones:
        hold_the_slot(server, open_ones)
        began = time.monotonic()
        streamed = open_ones.enter_context(server.connect())
        streamed.send(request("POST", "/v1/chat/completions", chat(stream=True)))
        whole = open_ones.enter_context(server.connect()).post(chat())

        assert 1 <= time.monotonic() - began < 40  # of the 80 that the slot is held
        assert (whole.status, whole.error["code"], whole.error["type"]) == (503, "queue_timeout", "unavailable_error")
        assert int(whole.headers["retry-after"]) >= 1
        assert events(streamed.answer().body)[-1]["error"]["code"] == "queue_timeout"
        assert server.metric("running") == 1  # who has a slot keeps it
        assert server.metric("waiting") == 0


def test_h067_a_reader_at_its_limit_ends_its_job_after_a_while(start: Servers) -> None:
    """It reads on after that, and is told why: what it had coming, then an error event."""
    server = start.start(model="synthetic:?tokens_per_s=0", reader_bytes=1024, stall_timeout_s=1, slots=2)
    with server.connect(receive_buffer=4096) as stalled, server.connect() as other:
        body = chat(stream=True, max_tokens=4000, logprobs=True, top_logprobs=20)
        stalled.send(request("POST", "/v1/chat/completions", body))

        def is_over() -> bool:
            metrics = server.metrics()
            began = metrics["corosrv_generated_tokens_total"] > 0
            return began and not metrics["corosrv_running"] and not metrics["corosrv_paused"]

        eventually(is_over, what="its slot is free")
        assert other.post(chat(max_tokens=1)).status == 200
        assert events(stalled.answer().body)[-1]["error"]["code"] == "client_too_slow"
    server.wait_idle()
