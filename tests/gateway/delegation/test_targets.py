"""What a request is for, and who serves that."""

from __future__ import annotations

import pytest

from corosrv.gateway.delegation.announcement import Announcement, OfferedHandler, Offers
from corosrv.gateway.delegation.targets import (
    AnyPredictor,
    ModelOfDialect,
    ModelOfV2,
    PeerTarget,
    by_path,
    dialect_path,
    format_of,
)
from corosrv.gateway.forwarding.peek import BY_PATH


@pytest.mark.parametrize(
    ("method", "path", "target"),
    [
        ("POST", "/v2/models/add/infer", ModelOfV2("add")),
        ("POST", "/v2/models/add/versions/2/infer", ModelOfV2("add", "2")),
        ("POST", "/v2/models/add/generate", ModelOfV2("add")),
        ("POST", "/v2/models/add/generate_stream", ModelOfV2("add")),
        ("GET", "/v2/models/add", ModelOfV2("add")),
        ("GET", "/v2/models/add/versions/2/ready", ModelOfV2("add", "2")),
        ("GET", "/v1/models/a/b", ModelOfDialect("openai", "a/b")),
        ("POST", "/predictions", AnyPredictor()),
        ("PUT", "/predictions/x", AnyPredictor()),
        ("POST", "/predictions/x/cancel", AnyPredictor()),
        ("GET", "/v2/models/add/infer", None),
        ("POST", "/v2/models/add", None),
        ("DELETE", "/v2/models/add", None),
        ("GET", "/v2/objects/5", None),
        ("POST", "/v2/repository/index", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", None),
        ("GET", "/predictionsx", None),
        ("POST", "/shutdown", None),
    ],
)
def test_a_path_says_what_it_is_for(method: str, path: str, target: PeerTarget | None):
    assert by_path(method, path) == target


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("/v1/chat/completions", "openai"),
        ("/chat/completions", "openai"),
        ("/v1/completions", "openai"),
        ("/v1/responses", "openai"),
        ("/v1/embeddings", "openai"),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/completion", "llamacpp"),
        ("/tokenize", "llamacpp"),
        ("/infill", "llamacpp"),
        ("/generate", "upstream"),
        ("/score", "upstream"),
    ],
)
def test_each_path_of_a_dialect_has_its_format(path: str, format: str):
    assert format_of(BY_PATH[path]) == format
    assert dialect_path("POST", path) is BY_PATH[path]
    assert dialect_path("GET", path) is None


def test_what_is_offered_in_another_format_is_not_offered():
    offers = Offers(Announcement("b", ["openai"], ["small"], [OfferedHandler("add")]))

    assert ModelOfDialect("openai", "small").is_offered(offers)
    assert not ModelOfDialect("anthropic", "small").is_offered(offers)
    assert not ModelOfDialect("openai", "add").is_offered(offers)
    assert not ModelOfV2("add").is_offered(offers)
    assert not AnyPredictor().is_offered(offers)


def test_a_name_that_looks_like_a_pattern_is_a_name():
    offers = Offers(Announcement("b", ["openai", "v2"], ["*"], [OfferedHandler("*")]))

    assert not ModelOfDialect("openai", "small").is_offered(offers)
    assert not ModelOfV2("add").is_offered(offers)
