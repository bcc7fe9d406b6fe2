"""The route that a path which leads nowhere may have meant."""

from __future__ import annotations

import pytest
from werkzeug.routing import Map, Rule

from corosrv.web.http.terms import nearest_route

ROUTES = Map(
    [
        Rule("/v1/chat/completions", methods=["POST"]),
        Rule("/v1/models", methods=["GET"]),
        Rule("/v1/models/<path:name>", methods=["GET"]),
        Rule("/v2/models/<name>/infer", methods=["POST"]),
        Rule("/v1/files/<id>", methods=["GET"]),
        Rule("/page/<kind>/<name>", methods=["GET"]),
        Rule("/api/<path:name>", methods=["POST"]),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "nearest"),
    [
        ("POST", "/v1/chat/completion", "POST /v1/chat/completions"),
        ("GET", "/v1/chat/completion", "POST /v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "POST /v1/chat/completions"),
        ("POST", "/v1//chat/completions/", "POST /v1/chat/completions"),
        ("GET", "/v1/v1/models/small", "GET /v1/models/small"),
        ("POST", "/v2/models/small/infr", "POST /v2/models/small/infer"),
        ("GET", "/v1/fils/file-1", "GET /v1/files/file-1"),
        ("POST", "/v1/images/generations", ""),  # which no file has for its name
        ("POST", "/v1/audio/transcriptions", ""),
        ("POST", "/v1/moderations", ""),
        ("GET", "/wp-login.php", ""),
        ("GET", "/v1/chat/completion" + "s" * 200, ""),
    ],
)
def test_the_nearest_route_is_named_with_a_method_that_it_takes(method: str, path: str, nearest: str):
    assert nearest_route(ROUTES, method, path) == nearest
