"""The encoder dies or hangs: texts go on, images are answered, and the next encoder comes."""

import os
import re
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.image_server import Files, chat, png, post
from tests.serve.server import APP, START_SECONDS, Process, Server, servers
from tests.serve.wire import CHAT, Answer, events, request, text_of
from tests.support import projector
from tests.support.faulty_images import CRASHING, FATAL, SLOW
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def shared(files, tmp_path_factory, cache):
    """A server in whose queue one image may wait."""
    with servers(tmp_path_factory.mktemp("shared"), cache) as started:
        yield files.start(started, encoder_queue=1)


@pytest.fixture
def start(files, tmp_path, cache):
    """Starts a server of this test's own."""
    with servers(tmp_path, cache) as started:
        yield lambda *command, **settings: files.start(started, *command, **settings)


@pytest.fixture
def gate(files):
    """The file that slow images wait for, which the test makes."""
    yield files.gate
    files.gate.unlink(missing_ok=True)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def encoder_of(server: Server) -> int:
    """Returns the pid of the encoder process."""
    (pid,) = server.worker.children_of("corosrv.images.encoder")
    return pid


def text_stream(server: Server) -> Answer:
    """A whole stream of text."""
    return post(server, chat(text="Only text", max_tokens=200, stream=True, ignore_eos=True))


def assert_whole(stream: Answer) -> None:
    assert stream.status == 200
    assert stream.body.rstrip().endswith(b"data: [DONE]")
    assert b'"finish_reason":"length"' in stream.body


def wait_for_encode(server: Server, n_active: int = 1) -> None:
    server.wait_metric("transfer_active", n_active)


def test_texts_go_on_and_images_are_answered_when_the_encoder_is_killed(shared, gate, threads):
    check_texts_and_images(shared, gate, threads, signal.SIGKILL)


def test_texts_go_on_and_images_are_answered_when_the_encoder_stands_still(start, gate, threads):
    # An image waits for four times the time of an encode, in which the next encoder has to come.
    check_texts_and_images(start(encode_timeout_s=8), gate, threads, signal.SIGSTOP)


def check_texts_and_images(server: Server, gate: Path, threads: ThreadPoolExecutor, number: int) -> None:
    n_restarts = server.metric("transfer_encoder_restarts_total")
    waiting = threads.submit(post, server, chat(png(width=SLOW)))
    wait_for_encode(server)
    streams = [threads.submit(text_stream, server) for _ in range(3)]

    gate.touch()  # for the next encoder: this one is gone before it looks, or stands still
    os.kill(encoder_of(server), number)

    for stream in streams:
        assert_whole(stream.result(60))
    assert waiting.result(60).status == 200
    assert server.metric("transfer_encoder_restarts_total") <= n_restarts + 1
    assert server.health() == "ok"


def test_an_image_that_kills_the_encoder_twice_is_refused_and_others_are_not(start, threads):
    server = start()
    fatal, other = png(width=FATAL), png()

    answers = [threads.submit(post, server, chat(image)) for image in (fatal, other)]

    assert answers[0].result(60).status == 400
    assert answers[0].result().error["code"] == "image_refused"
    assert answers[1].result(60).status == 200
    assert post(server, chat(fatal)).status == 400
    assert post(server, chat(png(2))).status == 200


def test_an_image_that_crashes_its_decoder_costs_its_own_request_alone(shared, threads):
    answers = [threads.submit(post, shared, chat(png(width=width, height=60))) for width in (CRASHING, 56, 64)]
    stream = threads.submit(text_stream, shared)

    refused = answers[0].result(60)

    assert (refused.status, refused.error["code"]) == (400, "invalid_image")
    assert refused.error["message"].startswith("messages[0].content[1].image_url: the PNG cannot be decoded")
    assert [one.result(60).status for one in answers[1:]] == [200, 200]
    assert_whole(stream.result(60))
    assert post(shared, chat(png(3))).status == 200


def test_an_image_that_came_before_needs_no_decoder(shared):
    image = chat(png(77))
    assert post(shared, image).status == 200
    decoders = shared.worker.children_of("corosrv.images.decoder")
    assert decoders

    for pid in decoders:
        os.kill(pid, signal.SIGSTOP)  # it would be given up after 30 s, and the image refused
    try:
        again = post(shared, image)
    finally:
        for pid in decoders:
            os.kill(pid, signal.SIGCONT)

    assert again.status == 200


def test_after_three_restarts_images_are_refused_and_texts_are_not(start):
    server = start()
    for n_restarts in range(3):
        os.kill(encoder_of(server), signal.SIGKILL)
        eventually(lambda n=n_restarts: server.metric("transfer_encoder_restarts_total") > n)
        eventually(lambda: b"corosrv.images.encoder" in commands(server))

    refused = post(server, chat(png()))

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) == 60
    assert server.get("/health")[1]["images"] == "degraded"
    assert_whole(text_stream(server))


def commands(server: Server) -> bytes:
    return b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.worker.children())


def test_a_client_that_leaves_frees_everything(shared, gate):
    cancelled = 'transfer_finished_total{result="cancelled"}'
    n_cancelled, n_restarts = shared.metric(cancelled), shared.metric("transfer_encoder_restarts_total")
    with shared.connect() as connection:
        connection.send(request("POST", CHAT, chat(png(41, width=SLOW))))
        wait_for_encode(shared)

    wait_for_encode(shared, 0)

    gate.touch()
    shared.wait_idle()
    shared.wait_metric('transfer_pool_blocks{state="in_use"}', 0)
    assert shared.metric(cancelled) == n_cancelled + 1
    assert post(shared, chat(png())).status == 200
    assert shared.metric("transfer_encoder_restarts_total") == n_restarts


def test_a_full_queue_is_told_with_the_time_to_come_again(shared, gate, threads):
    server = shared
    waiting: list[Future[Answer]] = []
    for n_active, n_queued in ((1, 0), (2, 0), (2, 1)):
        waiting.append(threads.submit(post, server, chat(png(50 + len(waiting), width=SLOW))))
        wait_for_encode(server, n_active)
        server.wait_metric("transfer_queued", n_queued)

    refused = post(server, chat(png(59, width=SLOW)))

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    gate.touch()
    assert [one.result(60).status for one in waiting] == [200, 200, 200]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (
            lambda path: projector.write_mlp(path, 32, lacks=["mm.2.weight", "mm.2.bias"]),
            "while it opened the projector",
        ),
        (lambda path: projector.write_mlp(path, 64), "cannot be used with this model"),
        (lambda path: path, "cannot be opened as a GGUF file"),
    ],
    ids=["it kills libmtmd", "another width", "no file"],
)
def test_a_projector_that_cannot_be_used_is_refused_in_words(start, tmp_path, write, words):
    server = start(mmproj=write(tmp_path / "wrong.gguf"), unloadable_s=-1, wait_for="failed")

    health = server.get("/health")

    assert health[0] == 503
    assert words in health[1]["error"]["message"]
    assert server.get("/health/live")[0] == 200


def test_who_waits_for_an_image_is_told_of_the_end_of_the_server(start, threads):
    server = start(drain_s=1)
    waiting = threads.submit(post, server, chat(png(width=SLOW)))
    wait_for_encode(server)
    pid = encoder_of(server)

    server.signal(signal.SIGTERM)

    assert waiting.result(60).status == 503
    assert server.wait() == 0
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists(), what="the end of the encoder")


def test_no_process_for_images_outlives_its_server(start):
    server = start()
    commands_running = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.worker.children()}
    pids = [pid for pid, command in commands_running.items() if b"corosrv." in command]

    server.stop()

    assert {command.split(b"\0")[2] for pid, command in commands_running.items() if pid in pids} >= {
        b"corosrv.images.encoder",
        b"corosrv.images.decoder",
    }
    eventually(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), what="the end of both")


def encoders_of(server: Server) -> dict[int, list[int]]:
    """Returns the pids of the encoders of each worker."""
    return {worker: Process(worker).children_of("corosrv.images.encoder") for worker in server.workers()}


def encoding(server: Server, run_dir: Path) -> list[int]:
    """Returns the pids of the workers whose encoders have an image."""
    active = re.findall(r'corosrv_transfer_active\{front="(\d+)",.*\} [1-9]', server.get("/metrics")[1])
    pids = {path.stem.split("-")[2]: int(path.stem.split("-")[3]) for path in run_dir.glob("*.front")}
    return [pids[front] for front in active]


def test_workers_of_one_engine_have_an_encoder_each_and_lose_no_image_with_another_ones(start, gate, tmp_path):
    server = start(*APP, "-w", "3", run_dir=tmp_path)
    eventually(lambda: server.log.count("loaded\n") == 3, START_SECONDS, "three workers")

    texts = {post(server, chat(png())).json["choices"][0]["message"]["content"] for _ in range(12)}
    assert len(texts) == 1
    assert [len(encoders) for encoders in encoders_of(server).values()] == [1, 1, 1]

    killed, *_ = encoders_of(server).values()
    os.kill(killed[0], signal.SIGKILL)
    assert {post(server, chat(png(seed))).status for seed in range(2, 14)} == {200}

    asked: list[Future[Answer]] = []
    with ThreadPoolExecutor(64) as threads:

        def two_encode() -> bool:
            asked.extend(threads.submit(post, server, chat(png(len(asked) + n, SLOW))) for n in range(8))
            time.sleep(0.2)
            return len(encoding(server, tmp_path)) >= 2

        eventually(two_encode, what="two workers that encode")
        victim, *_ = encoding(server, tmp_path)
        (encoder,) = encoders_of(server)[victim]
        Process(victim).kill()
        eventually(lambda: not Process(encoder).is_alive, what="the end of its encoder")
        gate.touch()
        ends = [one.result().status if one.exception() is None else 0 for one in asked]

    assert set(ends) == {0, 200}
    eventually(lambda: server.log.count("model tiny: loaded") == 4, START_SECONDS, "another worker")
    assert {post(server, chat(png(seed))).status for seed in range(20, 32)} == {200}


def n_given(server: Server) -> float:
    """Returns how many images were encoded, now or before, for some prompt."""
    names = ("corosrv_transfer_cached_images_total", "corosrv_transfer_finished_total")
    return sum(value for name, value in server.metrics().items() if name.startswith(names))


def test_images_go_to_the_engine_again_that_follows_a_killed_one(start, threads, tmp_path):
    server = start(*APP, "-w", "2", run_dir=tmp_path)
    # Different images: one that joins the encoding of its like is not counted.
    bodies = [chat(png(seed), max_tokens=100, ignore_eos=True, stream=True) for seed in range(4)]
    undisturbed = [text_of(events(post(server, body).body)) for body in bodies]
    engine, n_before = server.engine, n_given(server)

    os.kill(engine.pid, signal.SIGSTOP)  # before it has said anything
    try:
        asked = [threads.submit(post, server, body) for body in bodies]
        eventually(lambda: n_given(server) == n_before + 4, what="four images that are ready for the engine")
    finally:
        engine.kill()

    assert [text_of(events(one.result().body)) for one in asked] == undisturbed
    assert re.search(r"its engine is back after .*; [1-4] answers go on", server.log)
