"""API keys with limits over gRPC: they are the same accounts as over HTTP."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from corosrv.contracts.settings import add_key, remove_key
from corosrv.dialects.kserve.grpc import protocol
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import infer_request
from tests.serve.server import SERVE, START_SECONDS, Server, Servers, free_port, servers
from tests.serve.test_grpc import grpc_port
from tests.serve.test_keys import MODELS, ask, usage
from tests.support.waiting import eventually

TEXT = Tensor("text_input", "BYTES", [1], data=[b"hi"])
COMPLETION = {"model": "small", "prompt": "hi", "max_tokens": 1}

AddKey = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module")
def guarded(path: str, request: pytest.FixtureRequest) -> Server:
    """Two models over HTTP and gRPC, and a file of keys."""
    add_key(path, "root", {"admin": True})
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(model=MODELS, api_keys="plain-key", api_keys_file=path, grpc_port=0)


@pytest.fixture
def add(path: str) -> AddKey:
    return lambda **limits: add_key(path, f"key of test {next(_numbers)}", limits)


def asked(model: str = "small", max_tokens: int = 1) -> Any:
    return infer_request(model, TEXT, parameters={"max_tokens": max_tokens})


@contextmanager
def channel_to(server: Server) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port(server)}", options) as channel:
        yield channel


def call(server: Server, key: str, method: str = "ModelInfer", sent: Any = None) -> Any:
    """Calls a method with a key, which need not be there."""
    with channel_to(server) as channel:
        unary = channel.unary_unary(
            f"/{protocol.SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(protocol, f"{method}Response").FromString,
        )
        metadata = [("authorization", f"Bearer {key}")] if key else []
        return unary(asked() if sent is None else sent, timeout=START_SECONDS, wait_for_ready=True, metadata=metadata)


def refusal(*arguments: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call(*arguments, **options)
    return refused.value


def pushback(error: Any) -> int | None:
    """Returns the seconds after which another try makes sense, as the trailing metadata say."""
    found = dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")
    return None if found is None else int(found) // 1000


def test_a_key_s_requests_are_counted_together_over_grpc_and_http(guarded: Server, add: AddKey) -> None:
    key = add(requests_per_minute=2)

    call(guarded, key)
    over_http = ask(guarded, "POST", "/v1/completions", key, COMPLETION)
    refused = refusal(guarded, key)

    assert over_http.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2 requests a minute" in refused.details()
    assert 15 <= (pushback(refused) or 0) <= 30  # with the time that two calls took
    shown = usage(guarded, key)["total"]
    assert (shown["requests"], shown["refused_requests"]) == (2, 1)


def test_tokens_over_grpc_are_charged_and_settled(guarded: Server, add: AddKey) -> None:
    key = add(tokens_per_minute=80)

    call(guarded, key, sent=asked(max_tokens=50))
    refused = refusal(guarded, key, sent=asked(max_tokens=50))

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "80 tokens a minute" in refused.details()
    assert (pushback(refused) or 0) >= 1
    assert usage(guarded, key)["total"]["generated_tokens"] == 50


def test_a_prompt_that_never_fits_is_not_to_be_sent_again(guarded: Server, add: AddKey) -> None:
    refused = refusal(guarded, add(tokens_per_minute=1))

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert pushback(refused) is None


def test_each_request_of_a_stream_counts(guarded: Server, add: AddKey) -> None:
    key = add(requests_per_minute=2)
    with channel_to(guarded) as channel:
        stream = channel.stream_stream(
            f"/{protocol.SERVICE}/ModelStreamInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelStreamInferResponse.FromString,
        )
        metadata = [("authorization", f"Bearer {key}")]
        answers = list(stream(iter([asked()] * 3), timeout=20, wait_for_ready=True, metadata=metadata))

    errors = [answer.error_message for answer in answers if answer.error_message]
    assert len(errors) == 1
    assert "2 requests a minute" in errors[0]
    assert len(answers) > 2
    assert usage(guarded, key)["total"]["requests"] == 2


def test_questions_need_a_key_and_are_not_counted(guarded: Server, add: AddKey) -> None:
    key = add(requests_per_minute=1)

    for _ in range(3):
        call(guarded, key, "ServerMetadata", protocol.ServerMetadataRequest())
    refused = refusal(guarded, "", method="ServerMetadata", sent=protocol.ServerMetadataRequest())

    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    assert call(guarded, key).model_name == "small"


@pytest.mark.parametrize(("method", "kind"), [("ModelInfer", None), ("ModelMetadata", "ModelMetadataRequest")])
def test_a_model_that_the_key_may_not_use_is_not_there(
    guarded: Server, add: AddKey, method: str, kind: str | None
) -> None:
    key = add(models=("large",))
    sent = asked() if kind is None else getattr(protocol, kind)(name="small")

    refused = refusal(guarded, key, method=method, sent=sent)

    assert refused.code() is grpc.StatusCode.NOT_FOUND
    assert call(guarded, key, sent=asked("large")).model_name == "large"


def test_the_index_and_readiness_name_the_key_s_models_alone(guarded: Server, add: AddKey) -> None:
    key = add(models=("large",))

    rows = call(guarded, key, "RepositoryIndex", protocol.RepositoryIndexRequest()).models
    ready = [
        call(guarded, key, "ModelReady", protocol.ModelReadyRequest(name=name)).ready for name in ("small", "large")
    ]

    assert [row.name for row in rows] == ["large"]
    assert ready == [False, True]


def test_keys_that_come_and_go_are_known_at_once(guarded: Server, path: str) -> None:
    key = add_key(path, "temporary", {})
    assert call(guarded, key).model_name == "small"
    remove_key(path, "temporary")

    refused = refusal(guarded, key)

    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(guarded, "sk-unknown").code() is grpc.StatusCode.UNAUTHENTICATED
    assert call(guarded, "plain-key").model_name == "small"


def test_the_answers_that_are_made_at_once_are_limited_over_grpc(guarded: Server, add: AddKey) -> None:
    key = add(streams=1)
    with channel_to(guarded) as channel:
        unary = channel.unary_unary(
            f"/{protocol.SERVICE}/ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        metadata = [("authorization", f"Bearer {key}")]
        running = unary.future(asked(max_tokens=3000), timeout=20, wait_for_ready=True, metadata=metadata)
        eventually(lambda: usage(guarded, key)["total"]["requests"] == 1, what="a call that runs")
        refused = refusal(guarded, key)
        running.cancel()

    assert "1 answers made at once" in refused.details()
    eventually(lambda: usage(guarded, key)["total"]["prompt_tokens"] > 0, what="a call that has ended")
    assert call(guarded, key).model_name == "small"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, path: str, cache: Path) -> Iterator[Server]:
    """Three workers with the file of keys, each with a process of its own for gRPC."""
    with servers(tmp_path_factory.mktemp("three"), cache) as started:
        server = started.start(
            *SERVE, "-w", "3", model="small=synthetic:?tokens_per_s=100", api_keys_file=path, grpc_port=free_port(),
        )  # fmt: skip
        eventually(
            lambda: server.log.count("is ready") >= 3 and server.health() == "ok", START_SECONDS, "three workers"
        )
        yield server


def outcomes(server: Server, key: str, n: int, **options: Any) -> list[Any]:
    """The errors of calls, None of one that was answered, each over a channel of its own: it may lead to any worker."""

    def outcome() -> Any:
        try:
            call(server, key, **options)
        except grpc.RpcError as error:
            return error
        return None

    return [outcome() for _ in range(n)]


def codes(server: Server, key: str, n: int, **options: Any) -> list[grpc.StatusCode]:
    return [error.code() if error else grpc.StatusCode.OK for error in outcomes(server, key, n, **options)]


def test_several_workers_keep_one_limit_over_grpc_and_http(three: Server, add: AddKey) -> None:
    key = add(requests_per_minute=8)

    statuses = codes(three, key, 6)
    over_http = [ask(three, "POST", "/v1/completions", key, COMPLETION).status_code for _ in range(2)]
    after = outcomes(three, key, 5)
    refused = [error for error in after if error]

    assert (statuses, over_http) == ([grpc.StatusCode.OK] * 6, [200, 200])
    assert len(refused) >= 3  # some may have come back meanwhile
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all("8 requests a minute" in error.details() for error in refused)
    assert all(1 <= (pushback(error) or 0) <= 8 for error in refused)
    assert usage(three, key)["total"]["requests"] == 8 + len(after) - len(refused)


def test_several_workers_charge_tokens_once_wherever_they_were_asked_for(three: Server, add: AddKey) -> None:
    key, free = add(tokens_per_minute=400), add()

    began = time.monotonic()
    statuses = codes(three, key, 12, sent=asked(max_tokens=50))
    seconds = time.monotonic() - began
    assert {*codes(three, free, 6)} == {grpc.StatusCode.OK}

    n_ok = statuses.count(grpc.StatusCode.OK)
    assert 7 <= n_ok <= 8 + seconds * 400 / 60 / 50  # with what has come back meanwhile
    assert statuses.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 12 - n_ok
    assert usage(three, key)["total"]["generated_tokens"] == 50 * n_ok
    assert usage(three, free)["total"]["requests"] == 6


def test_each_request_of_a_stream_counts_where_its_key_is_counted(three: Server, add: AddKey) -> None:
    key = add(requests_per_minute=5, streams=1)
    metadata = [("authorization", f"Bearer {key}")]

    def errors() -> list[str]:
        with channel_to(three) as channel:
            stream = channel.stream_stream(
                f"/{protocol.SERVICE}/ModelStreamInfer",
                request_serializer=protocol.ModelInferRequest.SerializeToString,
                response_deserializer=protocol.ModelStreamInferResponse.FromString,
            )
            answers = stream(iter([asked(max_tokens=3)]), timeout=20, wait_for_ready=True, metadata=metadata)
            return [answer.error_message for answer in answers if answer.error_message]

    found = [errors() for _ in range(9)]

    assert found[:5] == [[]] * 5
    refused = [one for one in found[5:] if one]
    assert len(refused) >= 3  # one may have come back meanwhile
    assert all("5 requests a minute" in one[0] for one in refused)


def test_several_workers_make_no_more_answers_at_once_than_a_key_may_have(three: Server, add: AddKey) -> None:
    key = add(streams=1)
    with channel_to(three) as channel:
        unary = channel.unary_unary(
            f"/{protocol.SERVICE}/ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        metadata = [("authorization", f"Bearer {key}")]
        running = unary.future(asked(max_tokens=3000), timeout=20, wait_for_ready=True, metadata=metadata)
        eventually(lambda: usage(three, key)["total"]["requests"] == 1, what="a call that runs")
        refused = {*codes(three, key, 5)}
        running.cancel()

    assert refused == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    eventually(lambda: codes(three, key, 1) == [grpc.StatusCode.OK], what="the end of the call")
