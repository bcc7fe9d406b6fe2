"""What a request is for where its body says so."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask, request

from corosrv.base.errors import BodyTooLarge, InvalidJson, Refused
from corosrv.gateway.delegation.announcement import Announcement, OfferedHandler, Offers
from corosrv.gateway.delegation.targets import (
    CapabilityOfV2,
    ModelOfDialect,
    ModelOfOllama,
    PeerTarget,
    RequestBody,
    TargetFinder,
)
from corosrv.web.http.body_reader import BodyReader

LIMIT = 10_000
CAPABILITY = "/v2/capabilities/infer"
OFFERS = Offers(
    Announcement("b", ["v2"], [], [OfferedHandler("embed", capability={"type": "embed", "ctx": 2048, "gpu": True})])
)


@contextmanager
def posting(
    path: str, body: bytes, headers: dict[str, str] | None = None
) -> Iterator[tuple[TargetFinder, RequestBody]]:
    """Gives a finder and a request whose body has been read, or not, as a view leaves it."""
    with Flask("test").test_request_context(path, method="POST", data=body, headers=headers):
        current: Any = request._get_current_object()  # type: ignore[attr-defined]
        yield TargetFinder(BodyReader(), LIMIT), RequestBody(current, None)


def target_of(path: str, value: Any, headers: dict[str, str] | None = None) -> PeerTarget | None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    with posting(path, body, headers) as (finder, request_body):
        return finder.find(request_body)


def test_the_body_of_a_dialect_names_the_model():
    assert target_of("/v1/chat/completions", {"model": "small"}) == ModelOfDialect("openai", "small")
    assert target_of("/v1/messages", {"model": "small"}) == ModelOfDialect("anthropic", "small")


@pytest.mark.parametrize("name", ["small", "small:latest", "hf.co/o/small"])
def test_a_body_of_ollamas_names_a_model_of_a_replica_that_speaks_it(name: str):
    target = target_of("/api/chat", {"model": name})

    assert target == ModelOfOllama(name)
    assert target.is_offered(Offers(Announcement("b", ["ollama"], ["small"])))
    assert not target.is_offered(Offers(Announcement("b", ["ollama"], ["large"])))
    assert not target.is_offered(Offers(Announcement("b", ["openai"], ["small"])))


@pytest.mark.parametrize("path", ["/api/pull", "/api/delete", "/api/tags"])
def test_what_ollamas_clients_ask_of_one_server_is_for_no_peer(path: str):
    assert target_of(path, {"model": "small"}) is None


@pytest.mark.parametrize("value", [{}, {"model": ""}, {"model": 5}, {"model": None}])
def test_a_body_without_a_model_is_for_nobody(value: Any):
    assert target_of("/v1/chat/completions", value) is None


@pytest.mark.parametrize("path", ["/v1/chat", "/v2/objects", "/shutdown", "/models/load"])
def test_a_path_that_is_nobody_s_is_not_read(path: str):
    with posting(path, b"x" * (LIMIT + 1)) as (finder, body):
        assert finder.find(body) is None
        assert body.data is None


def test_a_body_is_read_once_and_goes_on_as_it_was_sent():
    sent = b'{"model": "small",   "x": 1}'
    with posting("/v1/chat/completions", sent) as (finder, body):
        finder.find(body)

        assert finder.body_of(body) == sent
        assert finder.body_of(body) is body.data


def test_a_body_that_is_too_long_is_refused():
    with pytest.raises(BodyTooLarge):
        target_of("/v1/chat/completions", b"[" * (LIMIT + 1))


def test_a_body_that_is_no_json_is_refused():
    with pytest.raises(InvalidJson):
        target_of("/v1/chat/completions", b"{")


@pytest.mark.parametrize(
    ("value", "headers", "is_offered"),
    [
        ({"capability": {"type": "embed"}}, {}, True),
        ({"capability": {"type": "embed", "ctx": {"gte": 4096}}}, {}, False),
        ({}, {"X-Capability-Type": "embed"}, True),
        ({}, {"X-Cap-Ctx": ">=1024", "X-Capability-Gpu": "true"}, True),
        ({"capability": {"type": "chat"}}, {"X-Capability-Type": "embed"}, False),
        ({"capability": {"type": "EMBED"}}, {}, False),
        ({"capability": {"type": "EMBED"}, "fuzzy": True}, {}, True),
        ({"capability": {"type": "EMBED"}}, {"X-Fuzzy": "true"}, True),
        ({"capability": {"type": "EMBED"}, "fuzzy": False}, {"X-Fuzzy": "true"}, False),
    ],
)
def test_a_query_is_read_as_the_v2_protocol_reads_it(value: Any, headers: dict[str, str], is_offered: bool):
    target = target_of(CAPABILITY, value, headers)

    assert isinstance(target, CapabilityOfV2)
    assert target.is_offered(OFFERS) is is_offered


def test_a_query_before_a_binary_tail_is_read():
    head = b'{"capability": {"type": "embed"}}'

    target = target_of(CAPABILITY, head + b"\xff\x00", {"Inference-Header-Content-Length": str(len(head))})

    assert target is not None
    assert target.is_offered(OFFERS)


def test_a_query_in_a_compressed_body_is_read_and_the_body_goes_on_compressed():
    sent = gzip.compress(b'{"capability": {"type": "embed"}}')
    with posting(CAPABILITY, sent, {"Content-Encoding": "gzip"}) as (finder, body):
        target = finder.find(body)

        assert target is not None
        assert target.is_offered(OFFERS)
        assert finder.body_of(body) == sent


def test_an_empty_query_is_refused():
    with pytest.raises(Refused, match="capability"):
        target_of(CAPABILITY, {})


def test_queries_that_differ_have_keys_that_do():
    keys = {getattr(target_of(CAPABILITY, {"capability": {"type": name}}), "key", None) for name in ("a", "b")}

    assert len(keys) == 2
