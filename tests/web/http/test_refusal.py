"""Clients that never made a request are told why they are refused."""

from __future__ import annotations

import json

import pytest
from gunicorn.http import errors

from corosrv.web.http.connection import Overloaded, TooSlow, answer, refusal


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestLine("GET /?key=secret"), 400),
        (errors.InvalidHeader("secret"), 400),
        (errors.LimitRequestLine(9000, 8190), 414),
        (errors.LimitRequestHeaders("secret"), 431),
        (errors.InvalidHTTPVersion((9, 9)), 505),
        (errors.UnsupportedTransferCoding("secret"), 501),
        (errors.ExpectationFailed("secret"), 417),
        (TooSlow(), 408),
        (Overloaded(), 503),
        (RuntimeError("secret"), 500),
    ],
)
def test_each_error_has_its_status_and_tells_nothing_of_what_was_sent(error, status):
    head, _, body = answer(refusal(error)).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert b"secret" not in body
    assert (b"Retry-After: 1" in head) == (status == 503)
