"""Requests through a front of real upstreams: other corosrv servers with the synthetic model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anthropic
import openai
import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import load
from tests.serve.fronts import ServerFront, front
from tests.serve.server import BIN, Server, Servers
from tests.serve.wire import CHAT, Answer, chat, events, named_events, request, text_of
from tests.support.waiting import eventually

NOTICED = 10.0  # seconds in which a client that left is noticed; what it asked for would take 40 s
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def upstream(request: pytest.FixtureRequest) -> Server:
    """One slot, fifty tokens a second."""
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(slots=1, model="small=synthetic:?tokens_per_s=50", ctx=4096)


@pytest.fixture(scope="module")
def forwarding(request: pytest.FixtureRequest, upstream: Server) -> Iterator[ServerFront]:
    """A front of that one, which lets it run two calls at once, so that one of them waits there."""
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, f"http://127.0.0.1:{upstream.port}?concurrency=2") as started:
        yield started


@pytest.fixture
def client(forwarding: ServerFront) -> Iterator[openai.OpenAI]:
    with forwarding.server.client() as client:
        yield client


@pytest.fixture
def messages_client(forwarding: ServerFront) -> Iterator[anthropic.Anthropic]:
    url = f"http://127.0.0.1:{forwarding.server.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


# The official clients.


def test_a_chat_is_answered_as_the_upstream_answers_it(client: openai.OpenAI, upstream: Server):
    answer = client.chat.completions.create(model="small", messages=HI, max_tokens=5, seed=1, temperature=0)

    with upstream.client() as its_client:
        direct = its_client.chat.completions.create(model="small", messages=HI, max_tokens=5, seed=1, temperature=0)
    assert answer.choices[0].message.content == direct.choices[0].message.content
    assert answer.usage is not None
    assert (answer.model, answer.usage.completion_tokens) == ("small", 5)


def test_a_streamed_chat_is_that_of_the_upstream(forwarding: ServerFront):
    with forwarding.server.connect() as connection:
        answer = connection.post(chat(model="small", stream=True, max_tokens=8))

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events(answer.body)[-1] == "[DONE]"
    assert text_of(events(answer.body))


def test_a_streamed_chat_comes_piece_by_piece(forwarding: ServerFront, upstream: Server):
    with forwarding.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
        connection.head()
        pieces = connection.pieces()

        assert text_of(events(b"".join(next(pieces) for _ in range(6))))
        assert upstream.metric("running") == 1, "the pieces were gathered"
    upstream.wait_idle()


def test_the_openai_client_reads_streams_completions_and_responses(client: openai.OpenAI):
    chunks = list(client.chat.completions.create(model="small", messages=HI, max_tokens=5, stream=True))
    text = client.completions.create(model="small", prompt="Once", max_tokens=5)
    answer = client.responses.create(model="small", input="hi", max_output_tokens=16)
    kinds = [
        event.type for event in client.responses.create(model="small", input="hi", max_output_tokens=16, stream=True)
    ]

    assert chunks[-1].choices[0].finish_reason == "length"
    assert text.choices[0].text
    assert answer.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.incomplete"


def test_the_anthropic_client_reads_answers_streams_and_counts(messages_client: anthropic.Anthropic):
    answer = messages_client.messages.create(model="small", messages=HI, max_tokens=5)
    with messages_client.messages.stream(model="small", messages=HI, max_tokens=5) as stream:
        text = "".join(stream.text_stream)
    count = messages_client.messages.count_tokens(model="small", messages=HI)

    assert answer.content[0].type == "text"
    assert text
    assert count.input_tokens == answer.usage.input_tokens
    assert answer._request_id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "Once", "n_predict": 3}),
        ("/tokenize", {"content": "hi"}),
        ("/detokenize", {"tokens": [5]}),
        ("/apply-template", {"messages": HI}),
        ("/chat/completions", {"messages": HI, "max_tokens": 3}),
    ],
)
def test_paths_of_llama_server_are_forwarded(forwarding: ServerFront, path: str, body: dict[str, object]):
    with forwarding.server.connect() as connection:
        answer = connection.post({**body, "model": "small"}, path)

    assert answer.status == 200, answer.body
    assert answer.json


def test_a_client_of_llama_server_gets_the_props_of_an_upstream(forwarding: ServerFront, upstream: Server):
    assert forwarding.server.get("/props?model=small") == upstream.get("/props")
    assert forwarding.server.get("/props?model=small")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/slots?model=small"),
        ("POST", "/slots/0?action=erase"),
        ("GET", "/lora-adapters"),
        ("POST", "/lora-adapters"),
    ],
)
def test_slots_and_adapters_of_upstreams_are_refused_by_name(forwarding: ServerFront, method: str, path: str):
    with forwarding.server.connect() as connection:
        answer = connection.ask(method, path)

    assert answer.status == 501
    assert answer.json["error"]["message"].startswith(path.partition("?")[0])


def test_models_are_those_of_upstreams(client: openai.OpenAI, forwarding: ServerFront):
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    assert forwarding.server.get("/models")[1]["models"][0]["name"] == "small"
    with pytest.raises(openai.NotFoundError, match="large"):
        client.models.retrieve("large")


def test_ollamas_clients_are_answered_too(forwarding: ServerFront):
    asked = {"model": "small:latest", "messages": HI, "options": {"num_predict": 3, "num_ctx": 9}}
    with forwarding.server.connect() as connection:
        whole = connection.post(asked | {"stream": False}, "/api/chat")
        streamed = connection.post(asked, "/api/chat")
        text = connection.post({"model": "small", "prompt": "Once", "options": {"num_predict": 3}}, "/api/generate")
        loaded = connection.post({"model": "small", "keep_alive": 0}, "/api/generate")
        missing = connection.post(asked | {"model": "large"}, "/api/chat")
        refused = connection.post({"model": "small", "input": "a"}, "/api/embed")

    assert (whole.json["eval_count"], whole.headers["x-corosrv-ignored"]) == (3, "options.num_ctx")
    lines = [json.loads(line) for line in streamed.body.splitlines() if line.strip()]
    assert "".join(line["message"]["content"] for line in lines) == whole.json["message"]["content"]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert text.headers["content-type"] == "application/x-ndjson"
    assert loaded.json["done_reason"] == "unload"
    assert (missing.status, missing.json) == (404, {"error": "model 'large' not found"})
    assert (refused.status, list(refused.json)) == (501, ["error"])
    assert [model["name"] for model in forwarding.server.get("/api/tags")[1]["models"]] == ["small:latest"]


def test_ollamas_clients_get_the_tokens_that_the_upstreams_own_get(forwarding: ServerFront, upstream: Server):
    asked = {"model": "small", "messages": HI, "options": {"num_predict": 4}, "logprobs": True, "top_logprobs": 2}
    told = []
    for server in (upstream, forwarding.server):
        with server.connect() as connection:
            whole = connection.post(asked | {"stream": False}, "/api/chat").json
            streamed = [json.loads(line) for line in connection.post(asked, "/api/chat").body.splitlines()]
        told += [whole["logprobs"], [token for line in streamed for token in line.get("logprobs", ())]]

    assert [[token["token"] for token in tokens] for tokens in told] == [[token["token"] for token in told[0]]] * 4
    assert [len(token["top_logprobs"]) for token in told[0]] == [2] * 4
    assert {token.keys() >= {"token", "logprob", "bytes", "top_logprobs"} for tokens in told for token in tokens} == {
        True
    }


def test_an_ollama_client_that_leaves_ends_its_call(forwarding: ServerFront, upstream: Server):
    with forwarding.server.connect() as connection:
        asked = {"model": "small", "messages": HI, "options": {"num_predict": 3000}}
        connection.send(request("POST", "/api/chat", asked))
        connection.head()
        next(connection.pieces())
        assert upstream.metric("running") == 1, "the lines were gathered"
    upstream.wait_idle()


# What a front is.


def test_a_front_loads_no_libllama(forwarding: ServerFront):
    files = forwarding.server.worker.files()

    assert [name for name in files if "llama" in name or "_native" in name] == []


def test_its_api_document_and_metrics_show_upstreams(forwarding: ServerFront, upstream: Server):
    paths = forwarding.server.get("/openapi.json")[1]["paths"]
    metrics = forwarding.server.metrics()

    assert {"/v1/chat/completions", "/v1/messages", "/generate"} <= paths.keys()
    host, id = f'host="127.0.0.1:{upstream.port}"', f'upstream="{forwarding.upstream()["id"]}"'
    assert metrics[f'corosrv_upstream_state{{{host},state="ready",{id}}}'] == 1
    assert metrics[f"corosrv_upstream_permits{{{host},{id}}}"] == 2
    names = {name.partition("{")[0].removeprefix("corosrv_upstream_") for name in metrics}
    assert names >= {"in_flight", "ok_total", "aborted_total", "first_byte_seconds_total", "call_seconds_total",
                     "tokens_total", "token_seconds_total"}  # fmt: skip
    n_begun = metrics[f"corosrv_upstream_first_bytes_total{{{host},{id}}}"]
    assert metrics[f'corosrv_upstream_ttfb_seconds_bucket{{{host},le="+Inf",{id}}}'] == n_begun
    assert metrics[f"corosrv_upstream_duration_seconds_count{{{host},{id}}}"] >= n_begun


OF_EACH = {"date", "content-length", "vary"}  # headers of which each answer has its own


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, chat(model="small", max_tokens=2)),
    (CHAT, chat(model="small", max_tokens=2, stream=True)),
    (CHAT, chat(model="small", max_tokens="many")),
    (CHAT, b"{"),
    ("/v1/messages", {"model": "small", "messages": HI, "max_tokens": 2}),
    ("/v1/messages", {"model": "small", "messages": HI, "max_tokens": 2, "stream": True}),
    ("/v1/messages", b"[1]"),
])  # fmt: skip
def test_an_answer_is_the_same_whether_flask_has_a_part_in_it_or_not(forwarding: ServerFront, path: str, body: object):
    with forwarding.server.connect() as connection:
        named = {"X-Request-Id": "one"}
        plain = connection.post(body, path, named)
        by_flask = connection.post(body, path, named | {"Origin": "http://localhost:3000"})  # which its hooks answer
        counter = f'corosrv_http_requests_total{{route="{path}",status="{plain.status}"}}'
        n_counted = forwarding.server.metrics()[counter]
        connection.post(body, path)

        assert forwarding.server.metrics()[counter] == n_counted + 1

    assert "access-control-allow-origin" in by_flask.headers
    assert plain.headers["x-request-id"] == "one"
    assert plain.status == by_flask.status
    assert _common(plain) == _common(by_flask)
    if plain.status != 200:
        assert (plain.status, plain.body) == (400, by_flask.body)


def _common(answer: Answer) -> dict[str, str]:
    return {
        name: value
        for name, value in answer.headers.items()
        if name not in OF_EACH and not name.startswith("access-control-")
    }


# Errors.


def test_what_is_no_object_is_refused_here_in_the_dialects_form(forwarding: ServerFront):
    with forwarding.server.connect() as connection:
        ours = connection.post(b"[1]", CHAT)
        theirs = connection.post(b"{", "/v1/messages")

    assert (ours.status, ours.error["type"]) == (400, "invalid_request_error")
    assert ours.error["message"].startswith("the body must be a JSON object")
    assert (theirs.status, theirs.json["type"], theirs.error["type"]) == (400, "error", "invalid_request_error")


def test_everything_else_is_for_the_upstream_to_refuse(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="small", messages=HI, temperature=-5)


def test_what_the_upstream_cannot_do_is_told_as_it_tells_it(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError, match="'small' gives no embeddings") as caught:
        client.embeddings.create(model="small", input="a")

    assert caught.value.status_code == 501


def test_a_header_that_cannot_be_is_refused_here(forwarding: ServerFront):
    with forwarding.server.connect() as connection:
        answer = connection.post(chat(), CHAT, {"X-Priority": "first"})

    assert (answer.status, answer.error["param"]) == (400, "X-Priority")


# Clients that leave.


def test_a_client_that_leaves_a_running_answer_cancels_it_at_the_upstream(forwarding: ServerFront, upstream: Server):
    cancelled = upstream.cancelled()
    connection = forwarding.server.connect()
    connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=2000)))
    connection.head()

    connection.leave()

    eventually(lambda: upstream.cancelled() == cancelled + 1, NOTICED, "the cancel at the upstream")
    eventually(lambda: forwarding.upstream()["in_flight"] == 0, NOTICED, "a free permit")


def test_a_client_that_leaves_an_answer_that_is_not_streamed_cancels_it_too(forwarding: ServerFront, upstream: Server):
    cancelled = upstream.cancelled()
    connection = forwarding.server.connect()
    connection.send(request("POST", CHAT, chat(model="small", max_tokens=2000)))
    eventually(lambda: upstream.metric("running") == 1, what="it runs")

    connection.leave()

    eventually(lambda: upstream.cancelled() == cancelled + 1, NOTICED, "the cancel at the upstream")


def test_a_client_that_leaves_the_queue_is_never_forwarded(forwarding: ServerFront, upstream: Server):
    cancelled = upstream.cancelled()
    running = [forwarding.server.connect() for _ in range(2)]
    for connection in running:
        connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
    eventually(lambda: forwarding.upstream()["in_flight"] == 2, what="every permit is taken")
    waiting = forwarding.server.connect()
    waiting.send(request("POST", CHAT, chat(model="small", max_tokens=3000)))
    forwarding.wait_queued(1)

    waiting.leave()

    forwarding.wait_queued(0)
    for connection in running:
        connection.leave()
    upstream.wait_idle()
    assert upstream.cancelled() == cancelled + 2


# Upstreams that come and go.


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_an_upstream_that_dies_in_mid_stream_gives_an_error_event(start: Servers, path: str):
    upstream = start.start(model="small=synthetic:?tokens_per_s=20")
    with front(start, f"http://127.0.0.1:{upstream.port}") as started, started.server.connect() as connection:
        connection.send(request("POST", path, chat(model="small", stream=True, max_tokens=1000)))
        head = connection.head()
        pieces = connection.pieces()
        body = next(pieces)

        upstream.stop()

        body += b"".join(pieces)

    assert head.status == 200
    assert b"[DONE]" not in body
    if path == CHAT:
        last = events(body)[-1]
        assert last["error"]["type"] == "server_error"
    else:
        last = named_events(body)[-1]
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert last["request_id"]


def test_an_upstream_that_is_added_takes_calls_that_wait(start: Servers, upstream: Server):
    with (
        front(start, elastic=1, wait_for=None) as started,
        started.server.client() as client,
        ThreadPoolExecutor() as threads,
    ):
        started.server.wait_until("ok")
        calls = [
            threads.submit(client.chat.completions.create, model="small", messages=HI, max_tokens=2) for _ in range(5)
        ]
        started.wait_queued(5)

        started.add(f"http://127.0.0.1:{upstream.port}", concurrency=2)

        texts = [call.result(30).choices[0].message.content for call in calls]
        assert all(texts)
        assert started.upstream()["ok"] == 5


def test_a_front_is_starting_until_an_upstream_is_ready(start: Servers):
    with front(start, "http://127.0.0.1:1", wait_for="starting") as started:
        status, health = started.server.get("/health")

        assert (status, health["status"]) == (503, "starting")
        assert "no upstream is ready" in health["error"]["message"]


def test_a_stop_lets_running_answers_end(start: Servers, upstream: Server):
    with front(start, f"http://127.0.0.1:{upstream.port}") as started, started.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=40)))
        connection.head()

        started.server.signal(15)

        found = events(b"".join(connection.pieces()))
        assert found[-1] == "[DONE]"
        assert started.server.wait() == 0


# Settings.


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a", "no http or https URL"),
        ("http://a?concurrency=0", "concurrency must be from 1"),
        ("http://a?speed=1", "no option of an upstream"),
        ("http://me:secret@a", "must not hold a password"),
    ],
)
def test_a_wrong_upstream_stops_the_start_and_shows_no_password(url: str, words: str):
    command = [str(BIN / "corosrv"), "serve", "--port", "0", "--upstream", "http://b"]
    ended = subprocess.run([*command, "--upstream", url], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert "COROSRV_UPSTREAM: upstream number 2" in ended.stderr
    assert words in ended.stderr
    assert "secret" not in ended.stderr


def test_a_key_has_its_share_of_a_front_without_a_model(start: Servers, upstream: Server):
    url = f"http://127.0.0.1:{upstream.port}?concurrency=4"
    greedy, modest = ({"Authorization": f"Bearer {key}"} for key in ("greedy", "modest"))
    with front(start, url, queue_per_key=2, api_keys="greedy,modest") as here, ExitStack() as opened:
        for _ in range(2):
            asking = opened.enter_context(here.server.connect())
            asking.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000), greedy))
        eventually(lambda: here.upstream()["in_flight"] == 2, what="two calls")

        refused = opened.enter_context(here.server.connect()).post(chat(model="small"), headers=greedy)
        last = opened.enter_context(here.server.connect())
        last.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=1), modest))

        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        assert "2 of at most 2 calls of this API key" in refused.error["message"]
        eventually(lambda: here.upstream()["in_flight"] == 3, what="the call of another key")


# The paths of SGLang's router at the front's own port.


@pytest.fixture(scope="module")
def router(
    request: pytest.FixtureRequest, upstream: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerFront]:
    kept: Servers = request.getfixturevalue("_kept")
    token = tmp_path_factory.mktemp("router") / "token"
    token.write_text("the-token\n")
    url = f"http://127.0.0.1:{upstream.port}?concurrency=2"
    with front(kept, url, router_paths=1, mgmt_token_file=token, api_keys="client") as started:
        yield started


def manage(at: ServerFront, method: str, path: str, body: object = None, token: str = "the-token") -> Answer:
    with at.server.connect() as connection:
        return connection.ask(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})


PATHS = [
    ("GET", "/workers"), ("POST", "/workers"), ("GET", "/workers/x"), ("DELETE", "/workers/x"),
    ("POST", "/add_worker?url=http://127.0.0.1:1"), ("POST", "/remove_worker?url=http://127.0.0.1:1"),
    ("GET", "/list_workers"), ("GET", "/get_loads"), ("POST", "/abort_request"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("token", ["", "client", "wrong"])
def test_the_routers_paths_are_not_open_to_clients(router: ServerFront, method: str, path: str, token: str):
    assert manage(router, method, path, {"abort_all": True, "url": "http://127.0.0.1:1"}, token).status == 401
    assert len(router.manage("GET", "/workers")["workers"]) == 1


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_the_setting_there_are_no_such_paths(forwarding: ServerFront, method: str, path: str):
    assert manage(forwarding, method, path, {}).status == 404


def test_workers_are_added_and_removed_at_the_fronts_port(router: ServerFront, upstream: Server):
    own, other = f"http://127.0.0.1:{upstream.port}", "http://127.0.0.1:1"

    assert manage(router, "POST", f"/add_worker?url={other}").status == 200
    assert manage(router, "GET", "/list_workers").json == {"urls": [own, other]}
    assert [row["worker"] for row in manage(router, "GET", "/get_loads").json["workers"]] == [own, other]
    assert manage(router, "POST", f"/remove_worker?url={other}").status == 200
    eventually(lambda: manage(router, "GET", "/list_workers").json == {"urls": [own]}, what="it has left")
    refused = manage(router, "POST", "/workers", {"url": "http://a..b"})
    assert (refused.status, "no name of a host" in refused.error["message"]) == (400, True)


def test_one_call_aborts_all_that_runs_and_waits_and_keeps_the_workers(router: ServerFront, upstream: Server):
    key = {"Authorization": "Bearer client"}
    with ExitStack() as opened:
        asking = [opened.enter_context(router.server.connect()) for _ in range(3)]
        for connection in asking:
            connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000), key))
        eventually(lambda: router.upstream()["in_flight"] == 2, what="two run")
        router.wait_queued(1)

        assert manage(router, "POST", "/abort_request", {"abort_all": True}).json == {"aborted": 3}

        for connection in asking:
            assert b"aborted by an operator" in connection.answer().body
        upstream.wait_idle()
        assert router.upstream()["state"] == "ready"
        assert (
            opened.enter_context(router.server.connect()).post(chat(model="small", max_tokens=1), headers=key).status
            == 200
        )


def test_an_abort_names_a_request_or_all(router: ServerFront):
    assert manage(router, "POST", "/abort_request", {"rid": "of-nobody"}).json == {"aborted": 0}
    assert manage(router, "POST", "/abort_request", {}).status == 400


def test_the_routers_paths_need_a_token_file():
    with pytest.raises(SettingsError, match="COROSRV_MGMT_TOKEN_FILE"):
        load({"upstream": "http://a", "router_paths": True}, {})


# Responses that an upstream has made and keeps.


def ask_for_response(server: Server, key: str = "", **fields: object) -> dict:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with server.connect() as connection:
        answer = connection.post({"input": "hi", "max_output_tokens": 16, **fields}, "/v1/responses", headers)
    assert answer.status == 200, answer.json
    return answer.json


def ask_about(server: Server, id: str, method: str = "GET", key: str = "") -> Answer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with server.connect() as connection:
        return connection.ask(method, f"/v1/responses/{id}", None, headers)


def test_a_response_is_read_and_deleted_at_the_upstream_that_made_it(client: openai.OpenAI, upstream: Server):
    made = client.responses.create(model="small", input="hi", max_output_tokens=16)

    assert client.responses.retrieve(made.id).output_text == made.output_text
    (asked,) = client.responses.input_items.list(made.id).data
    assert asked.content[0].text == "hi"
    client.responses.delete(made.id)
    with upstream.client() as its_client, pytest.raises(openai.NotFoundError):
        its_client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.retrieve(made.id)
    assert "no upstream has made it" in gone.value.message


def test_a_conversation_is_compacted_at_the_upstream_that_keeps_it(start: Servers):
    quick = start.start(model="small=synthetic:?tokens_per_s=0&length=20")
    with front(start, f"http://127.0.0.1:{quick.port}") as one:
        one.wait_state("ready", 0)
        made = ask_for_response(one.server, model="small")
        with one.server.client() as client:
            compacted = client.responses.compact(model="small", previous_response_id=made["id"])

    assert [item.type for item in compacted.output] == ["message", "compaction"]


def test_a_streamed_response_is_read_again_at_its_upstream(client: openai.OpenAI):
    first, *_, last = client.responses.create(model="small", input="hi", max_output_tokens=16, stream=True)

    assert client.responses.retrieve(first.response.id).output_text == last.response.output_text


def test_a_background_response_is_cancelled_and_followed_at_its_upstream(client: openai.OpenAI, upstream: Server):
    made = client.responses.create(model="small", input="hi", max_output_tokens=3000, background=True)

    cancelled = client.responses.cancel(made.id)
    followed = list(client.responses.retrieve(made.id, stream=True))

    assert cancelled.status == "cancelled"
    assert followed[0].type == "response.created"
    assert followed[-1].sequence_number == len(followed) - 1
    upstream.wait_idle()


def test_an_answer_that_goes_on_from_a_response_is_made_where_that_is_kept(start: Servers, upstream: Server):
    twin = start.start(model="small=synthetic:", ctx=4096)
    urls = (f"http://127.0.0.1:{server.port}" for server in (upstream, twin))
    with front(start, *urls, upstream_policy="round_robin") as both:
        for number in (0, 1):
            both.wait_state("ready", number)
        made = [ask_for_response(both.server, model="small") for _ in range(4)]
        kept = [{server for server in (upstream, twin) if ask_about(server, each["id"]).status == 200} for each in made]
        assert set().union(*kept) == {upstream, twin}

        ids = [each["id"] for each in made for _ in range(2)]  # turns alone would part each two
        with ThreadPoolExecutor(4) as threads:
            following = threads.map(
                lambda id: ask_for_response(both.server, model="small", previous_response_id=id, max_output_tokens=50),
                ids,
            )

        assert [each["previous_response_id"] for each in following] == ids


def test_many_answers_that_go_on_from_a_response_wait_for_its_upstream_beside_an_idle_one(
    start: Servers, upstream: Server
):
    twin = start.start(model="small=synthetic:", ctx=4096)
    urls = (f"http://127.0.0.1:{server.port}?concurrency=1" for server in (upstream, twin))
    with front(start, *urls) as both:
        for number in (0, 1):
            both.wait_state("ready", number)
        id = ask_for_response(both.server, model="small")["id"]

        with ThreadPoolExecutor(12) as threads:
            following = threads.map(
                lambda _: ask_for_response(both.server, model="small", previous_response_id=id, max_output_tokens=40),
                range(12),
            )

        assert [each["previous_response_id"] for each in following] == [id] * 12


def test_each_of_two_upstreams_is_asked_for_its_own_responses_by_their_own_keys(start: Servers, upstream: Server):
    other = start.start(model="large=synthetic:", ctx=4096)
    urls = (f"http://127.0.0.1:{server.port}" for server in (upstream, other))
    with front(start, *urls, api_keys="mine,yours", model="own=synthetic:") as beside:
        server = beside.server
        for number in (0, 1):
            beside.wait_state("ready", number)
        made = [ask_for_response(server, "mine", model=model) for model in ("small", "large", "own", "large")]

        read = [ask_about(server, response["id"], key="mine") for response in made]
        assert [answer.json["model"] for answer in read] == ["small", "large", "own", "large"]
        assert [answer.json["output"] for answer in read] == [response["output"] for response in made]
        assert [ask_about(server, response["id"], key="yours").status for response in made] == [404] * 4
        deleted = [ask_about(server, response["id"], "DELETE", key="mine").status for response in made]
        assert deleted == [200] * 4
        assert [ask_about(server, response["id"], key="mine").status for response in made] == [404] * 4


def test_a_404_of_an_upstream_says_whose_it_is(start: Servers):
    strict = start.start(model="small=synthetic:", strict_model=1)
    with front(start, f"http://127.0.0.1:{strict.port}?model=large") as stale:
        with stale.server.connect() as connection:
            answer = connection.post(chat(model="large"))

        id = stale.upstream()["id"]
        assert answer.status == 404
        assert answer.error["message"].startswith(f"{id} answered: ")
        assert answer.headers["x-corosrv-upstream"] == id
