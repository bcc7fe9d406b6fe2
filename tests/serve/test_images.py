"""Images in every dialect, through a real server with a real encoder process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from corosrv.contracts.jobs import Job, Pieces, Rows, Sampling, Terms, Tokens
from corosrv.images.vision.encoder import ImageEncoder, encode_images
from tests.images.vision.encoders import NobodyLeaves, image, options
from tests.serve.image_server import DIALECTS, N_EMBD, N_PREDICT, N_ROWS, Dialect, Files, chat, completion, events, png
from tests.serve.server import Server, servers
from tests.support import projector
from tests.support.engines import answer, opened
from tests.support.waiting import eventually

BLOCKS = 'transfer_pool_blocks{state="%s"}'


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory, cache) -> Server:
    with servers(tmp_path_factory.mktemp("images"), cache) as started:
        yield files.start(started)


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    """After each test the pool is free and nothing waits."""
    yield
    server.wait_idle()
    for name in (BLOCKS % "in_use", BLOCKS % "quarantined", "transfer_active", "transfer_queued"):
        server.wait_metric(name, 0)
    assert server.metric("transfer_staging_bytes") == 0


def ask(server: Server, dialect: Dialect, *images: str, **fields) -> dict:
    with server.connect() as connection:
        reply = connection.post(dialect.body(*images, **fields), dialect.path)
    assert reply.status == 200, reply.body
    return reply.json


def n_encoded(server: Server) -> float:
    return server.metric('transfer_finished_total{result="success"}')


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_image_is_answered_whole_and_streamed_alike(server, dialect):
    with_image = ask(server, dialect, png())
    without = ask(server, dialect)
    with server.connect() as connection:
        stream = connection.post(dialect.body(png(), stream=True), dialect.path)

    assert stream.status == 200, stream.body
    assert dialect.text(with_image)
    assert "".join(map(dialect.delta, events(stream.body))) == dialect.text(with_image)
    assert dialect.n_prompt(with_image) >= dialect.n_prompt(without) + N_ROWS


def test_the_answer_is_that_of_the_same_tokens_and_rows(server, files):
    text = "It is"
    encoder = ImageEncoder(options(files.model, files.mmproj), N_EMBD)
    try:
        encoder.start()
        (encoded,) = encode_images(encoder, [image()], Terms(), NobodyLeaves).values()
    finally:
        encoder.close()
    with opened(model=str(files.model), ctx=512) as engine:
        ids = tuple(engine.vocabulary(None).tokenize(text, True, True))
        prompt = Pieces((Tokens(ids), *encoded.pieces))
        expected = answer(engine, Job((prompt,), max_tokens=N_PREDICT, sampling=Sampling(temperature=0)))

    with server.connect() as connection:
        reply = connection.post(completion(png(), text=text), "/v1/completions")

    assert any(isinstance(piece, Rows) for piece in encoded.pieces)
    assert reply.json["choices"][0]["text"] == expected


def test_an_image_that_comes_again_is_neither_encoded_nor_prefilled(server):
    words = {"text": "Something else."}
    with server.connect() as connection:
        first = connection.post(chat(png(7), **words)).json
        n_before = n_encoded(server)
        second = connection.post(chat(png(7), **words)).json

    assert n_encoded(server) == n_before
    assert second["choices"] == first["choices"]
    assert second["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= N_ROWS
    assert second["usage"]["prompt_tokens_details"]["image_tokens"] == N_ROWS


def test_another_image_has_another_answer(server):
    with server.connect() as connection:
        texts = {connection.post(chat(png(seed))).json["choices"][0]["message"]["content"] for seed in range(20, 24)}

    assert len(texts) > 1


def test_many_requests_with_one_image_encode_it_once(server):
    n_before = n_encoded(server)

    def post(number: int) -> int:
        with server.connect() as connection:
            return connection.post(chat(png(11), text=f"Request {number}.")).json["usage"]["completion_tokens"]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(post, range(8)))

    assert n_encoded(server) == n_before + 1


def test_several_images_stand_in_their_order(server):
    one, two = png(31), png(32)
    with server.connect() as connection:
        there, back, once = (connection.post(chat(*images)).json for images in ((one, two), (two, one), (one,)))

    assert there["usage"]["prompt_tokens"] == back["usage"]["prompt_tokens"]
    assert there["usage"]["prompt_tokens"] == once["usage"]["prompt_tokens"] + N_ROWS
    assert there["choices"] != back["choices"]


def test_tokens_of_a_prompt_with_images_are_counted_with_its_rows(server):
    body = chat(png())
    with server.connect() as connection:
        counted = connection.post(body, "/v1/chat/completions/input_tokens").json
        answered = connection.post(body).json

    assert answered["usage"]["prompt_tokens"] in counted.values()


def test_more_images_than_the_context_holds_are_refused_before_one_is_encoded(server):
    before = server.metric("transfer_rows_total")
    with server.connect() as connection:
        reply = connection.post(chat(*[png(seed) for seed in range(100, 140)]))

    assert reply.status == 400
    assert server.metric("transfer_rows_total") == before
    assert reply.error["code"] == "context_length_exceeded"


def test_the_model_says_that_it_takes_images(server):
    listed = server.get("/v1/models")[1]

    assert {"images", "multimodal"} <= set(listed["models"][0]["capabilities"])
    assert "images" in listed["data"][0]["capabilities"]
    assert listed["data"][0]["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert listed["data"][0]["meta"]["row_width"] == N_EMBD
    assert server.get("/v1/models/tiny")[1]["capabilities"] == listed["data"][0]["capabilities"]
    props = server.get("/props")[1]
    assert props["modalities"]["vision"] is True
    prompt = {"prompt_string": f"Look: {props['media_marker']}", "multimodal_data": [png()]}
    with server.connect(timeout=30) as connection:
        assert connection.post({"prompt": prompt, "n_predict": 1}, "/completion").status == 200
    assert server.get("/health")[1]["images"] == "up"


MOVING = (
    "rounds_total",
    "rows_total",
    "grant_blocks_count",
    "rounds_per_item_count",
    'pool_blocks{state="free"}',
    'finished_total{result="success"}',
    *(f'seconds_total{{phase="{phase}"}}' for phase in ("queue", "encode", "wait_blocks", "fill", "copy")),
)
STILL = (
    'pool_blocks{state="in_use"}',
    'pool_blocks{state="quarantined"}',
    "active",
    "queued",
    "staging_bytes",
    "not_finite_total",
    "encoder_restarts_total",
    "encoder_kills_total",
    "drain_seconds_total",
    "degraded",
    *(f'finished_total{{result="{result}"}}' for result in ("lost", "timeout", "protocol")),
    'ignored_messages_total{why="duplicate"}',
)
OTHER = (
    *(f'finished_total{{result="{result}"}}' for result in ("cancelled", "encoder")),
    *(f'ignored_messages_total{{why="{why}"}}' for why in ("late", "epoch", "unknown")),
)


def test_every_metric_of_transfers_is_there(server):
    with server.connect() as connection:
        assert connection.post(chat(png(51))).status == 200

    metrics = server.metrics()

    assert [name for name in MOVING if not metrics[f"corosrv_transfer_{name}"] > 0] == []
    assert [name for name in STILL if metrics[f"corosrv_transfer_{name}"] != 0] == []
    assert [name for name in OTHER if f"corosrv_transfer_{name}" not in metrics] == []
    assert metrics["corosrv_transfer_rows_total"] % projector.N_PATCHES == 0


def test_a_model_without_a_projector_refuses_images(files, tmp_path, cache):
    with servers(tmp_path, cache) as started:
        text_only = files.start(started, mmproj="")
        with text_only.connect() as connection:
            reply = connection.post(chat(png()))
        children = text_only.worker.children()

        assert reply.status == 400
        assert reply.error["code"] == "unsupported_content"
        assert "images" not in text_only.get("/health")[1]
        assert text_only.get("/props")[1]["modalities"]["vision"] is False
        assert children == []


def test_a_projector_is_of_one_model_and_its_encoder_ends_with_it(files, tmp_path, cache):
    with servers(tmp_path, cache) as started:
        server = files.start(started, model=f"eye={files.model}?mmproj={files.mmproj},text={files.model}", mmproj="")
        with server.connect(timeout=60) as connection:
            seen = connection.post(chat(png(), model="eye"))
            refused = connection.post(chat(png(), model="text"))
            n_encoders = len(server.worker.children_of("corosrv.images.encoder"))
            connection.post({"model": "eye"}, "/models/unload")
            eventually(lambda: not server.worker.children_of("corosrv.images.encoder"), what="the end of the encoder")
            again = connection.post(chat(png(), model="eye"))

        assert (seen.status, refused.status, again.status) == (200, 400, 200)
        assert n_encoders == 1
        assert again.json["choices"] == seen.json["choices"]
