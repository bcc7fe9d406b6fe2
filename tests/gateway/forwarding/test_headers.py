"""Which headers go on to an upstream, and which come back."""

from __future__ import annotations

import pytest

from corosrv.base.errors import WorkerLost
from corosrv.gateway.forwarding.headers import answer_headers, media_type, request_headers


def passed(passes_keys: bool = False, **environ: str) -> dict[str, str]:
    return dict(request_headers(environ, "req_1", passes_keys=passes_keys))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("HTTP_ACCEPT", "Accept"),
        ("HTTP_USER_AGENT", "User-Agent"),
        ("HTTP_TRACEPARENT", "Traceparent"),
        ("HTTP_TRACESTATE", "Tracestate"),
        ("HTTP_ANTHROPIC_VERSION", "Anthropic-Version"),
        ("HTTP_OPENAI_ORGANIZATION", "Openai-Organization"),
        ("HTTP_X_STAINLESS_OS", "X-Stainless-Os"),
        ("HTTP_X_SESSION_ID", "X-Session-Id"),
    ],
)
def test_what_clients_say_to_models_goes_on(field: str, name: str):
    assert passed(**{field: "value"})[name] == "value"


@pytest.mark.parametrize(
    "field",
    [
        "HTTP_COOKIE", "HTTP_HOST", "HTTP_CONNECTION", "HTTP_TE", "HTTP_UPGRADE", "HTTP_TRANSFER_ENCODING",
        "HTTP_X_FORWARDED_FOR", "HTTP_X_COROSRV_HOPS", "HTTP_X_REAL_IP", "HTTP_PROXY_AUTHORIZATION", "HTTP_FORWARDED",
        "HTTP_ORIGIN", "HTTP_REFERER", "HTTP_EXPECT",
    ],
)  # fmt: skip
def test_what_is_of_this_hop_or_of_this_server_stays_here(field: str):
    assert passed(**{field: "value"}) == passed()


def test_fields_that_connection_names_stay_here():
    assert "X-Secret" not in passed(HTTP_CONNECTION="keep-alive, X-Secret", HTTP_X_SECRET="1")
    assert "X-Secret" in passed(HTTP_CONNECTION="keep-alive", HTTP_X_SECRET="1")


@pytest.mark.parametrize(("field", "name"), [("HTTP_AUTHORIZATION", "Authorization"), ("HTTP_X_API_KEY", "X-Api-Key")])
def test_a_key_goes_on_only_where_it_is_not_for_this_server(field: str, name: str):
    assert name not in passed(**{field: "key"})
    assert passed(passes_keys=True, **{field: "key"})[name] == "key"


def test_an_idempotency_key_goes_on_only_where_no_answers_are_kept():
    fields = {"HTTP_IDEMPOTENCY_KEY": "k"}

    assert "Idempotency-Key" not in passed(**fields)
    assert dict(request_headers(fields, "req_1", passes_keys=False, passes_idempotency=True))["Idempotency-Key"] == "k"


def test_every_request_has_an_id_a_type_and_asks_for_no_compression():
    fields = passed(HTTP_ACCEPT_ENCODING="gzip", HTTP_X_REQUEST_ID="somebody's")

    assert fields == {"Content-Type": "application/json", "Accept-Encoding": "identity", "X-Request-Id": "req_1"}


@pytest.mark.parametrize(
    "name",
    [
        "Content-Type", "Cache-Control", "Retry-After", "X-RateLimit-Remaining", "RateLimit-Reset", "X-Should-Retry",
        "OpenAI-Processing-Ms", "Anthropic-Organization-Id", "request-id", "Server-Timing", "Idempotency-Replayed",
        "Inference-Header-Content-Length",
    ],
)  # fmt: skip
def test_what_an_answer_says_of_itself_comes_back(name: str):
    assert answer_headers(((name, "value"),)) == [(name, "value")]


@pytest.mark.parametrize(
    "name",
    [
        "Clear-Site-Data", "Refresh", "Service-Worker-Allowed", "Set-Cookie", "Set-Cookie2",
        "Strict-Transport-Security",
        "Public-Key-Pins", "Expect-CT", "Alt-Svc", "NEL", "Report-To", "Reporting-Endpoints", "Link", "SourceMap",
        "X-SourceMap", "Content-Security-Policy", "Content-Security-Policy-Report-Only", "X-Frame-Options",
        "Permissions-Policy", "Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "Origin-Agent-Cluster",
        "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Timing-Allow-Origin", "Accept-CH",
        "Speculation-Rules", "WWW-Authenticate", "X-Accel-Redirect", "X-Sendfile", "Sec-Session-Registration",
        "Unknown",
    ],
)  # fmt: skip
def test_what_an_answer_says_to_browsers_and_proxies_stays_here(name: str):
    assert answer_headers(((name, "value"), ("X-Kept", "1"))) == [("X-Kept", "1")]


@pytest.mark.parametrize(
    "name",
    [
        "Connection", "Keep-Alive", "Transfer-Encoding", "Date", "Server", "Set-Cookie", "Content-Length", "Trailer",
        "Access-Control-Allow-Origin", "Strict-Transport-Security", "X-Request-Id", "X-Corosrv-Path",
    ],
)  # fmt: skip
def test_headers_of_the_hop_and_of_the_other_server_do_not_come_back(name: str):
    assert answer_headers(((name, "value"), ("X-Kept", "1"))) == [("X-Kept", "1")]


def test_what_the_answers_connection_names_does_not_come_back():
    assert answer_headers((("Connection", "close, X-Hop"), ("X-Hop", "1"), ("X-End", "1"))) == [("X-End", "1")]


def test_a_folded_field_cannot_begin_a_header_of_its_own():
    assert answer_headers((("X-Folded", "a\r\n Set-Cookie: b"),)) == []


def test_an_answer_that_is_compressed_is_not_passed_on():
    assert answer_headers((("Content-Encoding", "identity"),)) == []
    with pytest.raises(WorkerLost, match="compressed"):
        answer_headers((("Content-Encoding", "gzip"),))


def test_the_media_type_is_read_without_its_parameters():
    assert media_type((("content-type", "Text/Event-Stream; charset=utf-8"),)) == "text/event-stream"
    assert media_type(()) == ""
