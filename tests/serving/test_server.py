"""A server's parts: which of them a client's path belongs to."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import msgspec
import pytest
from flask import Flask, request

from corosrv.base.errors import HttpError, SettingsError
from corosrv.contracts import settings
from corosrv.gateway.delegation import announcement
from corosrv.gateway.forwarding.peek import FORWARDED
from corosrv.serving.part import Format
from corosrv.serving.server import Server
from corosrv.web.http.terms import request_terms
from corosrv.web.inference_gateway import OBJECTIVE, OBJECTIVE_FIELD

UPSTREAM = "http://127.0.0.1:1"
PREDICTOR = "deploy/predictor/predict.py:Predictor"


def server(**chosen: str) -> Server:
    return Server(settings.load(chosen, environ={}))


@pytest.mark.parametrize(
    ("chosen", "path", "members"),
    [
        ({"model": "synthetic:"}, "/nowhere", {"message", "type", "param", "code"}),
        ({"model": "synthetic:"}, "/predictions/1/2", {"message", "type", "param", "code"}),
        ({"model": "synthetic:", "predictor": PREDICTOR}, "/v1/nowhere", {"message", "type", "param", "code"}),
        ({"model": "synthetic:", "predictor": PREDICTOR}, "/predictions/1/2", set()),
        ({"upstream": UPSTREAM}, "/v1/nowhere", {"message", "type", "param", "code"}),
        ({"upstream": UPSTREAM, "predictor": PREDICTOR}, "/v1/nowhere", {"message", "type", "param", "code"}),
        ({"upstream": UPSTREAM, "predictor": PREDICTOR}, "/predictions/1/2", set()),
        ({"predictor": PREDICTOR}, "/predictions/1/2", set()),
        ({"predictor": PREDICTOR}, "/nowhere", set()),
    ],
)
def test_an_error_has_the_shape_of_the_part_that_the_path_belongs_to(chosen, path, members):
    error = msgspec.to_builtins(server(**chosen).context.error_body(HttpError(404, "words"), path))["error"]

    assert error == "words" if not members else set(error) == members


@pytest.mark.parametrize("chosen", [{"upstream": UPSTREAM}, {"upstream": UPSTREAM, "model": "synthetic:"}])
def test_each_forwarded_path_has_one_view_with_and_without_a_model_of_this_server(chosen):
    app = Flask("app")
    app.register_blueprint(server(**chosen).make_blueprint(), url_prefix="/llm")

    views = Counter((rule.rule, method) for rule in app.url_map.iter_rules() for method in rule.methods or ())

    assert {f"/llm{path.path}" for path in FORWARDED} <= {rule for rule, method in views if method == "POST"}
    assert [view for view, n in views.items() if n > 1 and view[1] not in ("HEAD", "OPTIONS")] == []


def test_parts_and_announcements_name_formats_alike():
    named = {
        getattr(announcement, name)
        for name in ["OPENAI", "ANTHROPIC", "LLAMACPP", "OLLAMA", "UPSTREAM", "V2", "PREDICTIONS"]
    }

    assert named == set(get_args(Format))


@pytest.mark.parametrize(
    ("networks", "said", "tier", "is_passed_on"),
    [("", "", 1, False), ("127.0.0.1", "premium", 0, True), ("10.0.0.0/8", "premium", 1, False)],
    ids=["says nothing", "is believed", "is another address"],
)
def test_a_request_of_a_peer_has_the_place_that_the_gateway_gives_it(networks, said, tier, is_passed_on):
    chosen = {"upstream": UPSTREAM, "peer_token": "the-token", "objectives": "premium=10", "gateway_from": networks}
    one, app = server(**chosen), Flask("app")
    one.add_hooks(app)
    headers = {"X-Corosrv-Token": "the-token", "X-Corosrv-Caller": "ab"} | ({OBJECTIVE: said} if said else {})

    with app.test_request_context("/", headers=headers, environ_base={"REMOTE_ADDR": "127.0.0.1"}):
        app.preprocess_request()
        terms = request_terms()
        assert (OBJECTIVE_FIELD in request.environ) == is_passed_on
    one.close()

    assert (terms.caller, terms.tier) == ("ab", tier)


@pytest.mark.parametrize("url", ["10.0.0.1:8080", "http://u:p@h", "http://h?id=a", "ftp://h"])
def test_an_address_for_peers_is_checked_as_that_of_a_peer_is(url: str):
    with pytest.raises(SettingsError, match="COROSRV_PEER_URL: "):
        server(upstream=UPSTREAM, peer_token="the-token", redis_url="redis://h:1", peer_url=url)


def test_models_of_upstreams_are_listed_below_a_prefix_too():
    app = Flask("app")
    chosen = {"upstream": f"{UPSTREAM}?model=large", "model": "synthetic:"}
    app.register_blueprint(server(**chosen).make_blueprint(), url_prefix="/llm")

    answer = app.test_client().get("/llm/v1/models")

    assert "large" in [model["id"] for model in answer.get_json()["data"]]
