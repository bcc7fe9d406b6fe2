"""Requests with images through a real server: official clients, what is refused by which words, and limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import anthropic
import pytest
from PIL import Image as Pillow

from tests.images.pictures import BLUE, GREEN, RED, WHITE, base64, data_url, encoded, plain, png
from tests.serve.image_server import N_ROWS, Files, chat
from tests.serve.server import Server, servers
from tests.serve.wire import CHAT, Answer, request
from tests.support.faulty_images import SLOW
from tests.support.waiting import eventually

PNG = plain("PNG", (56, 56))
IMAGE = {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "high"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(PNG)}}
TEXT = {"type": "text", "text": "What is it?"}
BOMB = png(10_000, 10_000, 0, 1, (b"\0" + bytes(1250)) * 10_000)
LIMITS = {"image_pixels": 100_000, "image_total_pixels": 100_000, "image_bytes": 50_000, "image_memory_bytes": 650_000}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return Files.write(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(files, tmp_path_factory, cache) -> Server:
    with servers(tmp_path_factory.mktemp("images"), cache) as started:
        yield files.start(started, image_hosts="127.0.0.1", ctx=1024)


@pytest.fixture(scope="module")
def limited(files, tmp_path_factory, cache) -> Server:
    with servers(tmp_path_factory.mktemp("limited"), cache) as started:
        yield files.start(started, **LIMITS)


@pytest.fixture
def gate(files):
    yield files.gate
    files.gate.unlink(missing_ok=True)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(32) as pool:
        yield pool


@pytest.fixture
def hosted():
    """The URL of a server that has the image under /a.png, and a redirect to a private address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/a.png" else 302)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data")
            self.send_header("Content-Length", str(len(PNG)))
            self.end_headers()
            self.wfile.write(PNG)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as host:
        serving = Thread(target=host.serve_forever, args=(0.05,))
        serving.start()
        yield f"http://127.0.0.1:{host.server_address[1]}"
        host.shutdown()
        serving.join()


Colour = tuple[int, int, int]


def post(server: Server, body: Any, path: str = "/v1/chat/completions") -> Answer:
    with server.connect() as connection:
        return connection.post(body, path)


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}], "max_tokens": 4}


def image_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_openais_client_sends_images_to_chats(server: Server):
    with server.client() as client:
        answer = client.chat.completions.create(model="m", messages=said(TEXT, IMAGE)["messages"], max_tokens=4)

    assert answer.usage.prompt_tokens > N_ROWS


def test_openais_client_goes_on_with_a_response_that_had_an_image(server: Server):
    image = {"type": "input_image", "image_url": data_url(PNG), "detail": "auto"}
    question = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}
    with server.client() as client:
        first = client.responses.create(model="m", input=[question], max_output_tokens=4)
        second = client.responses.create(
            model="m", input="And now?", previous_response_id=first.id, max_output_tokens=4
        )

    assert first.usage.input_tokens > N_ROWS
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > N_ROWS
    assert second.usage.input_tokens_details.image_tokens == N_ROWS


def test_anthropics_client_sends_images_and_results_of_tools_with_some(server: Server):
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [TEXT, BLOCK]}
    history = [
        {"role": "user", "content": [TEXT, BLOCK]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    with anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="m", messages=history, max_tokens=4)

    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) > 2 * N_ROWS


def test_the_marker_in_a_chat_is_text_beside_an_image(server: Server):
    answer = post(server, said({"type": "text", "text": "<__media__>" * 5}, IMAGE))

    assert answer.status == 200
    assert answer.json["usage"]["prompt_tokens"] > N_ROWS


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize(("n_markers", "n_images"), [(0, 1), (1, 2), (2, 1)])
def test_markers_and_multimodal_data_that_do_not_match_are_refused(server, path: str, n_markers: int, n_images: int):
    prompt = {"prompt_string": "Is it " + "<__media__>" * n_markers, "multimodal_data": [base64(PNG)] * n_images}

    answer = post(server, {"prompt": prompt, "max_tokens": 2}, path)

    assert answer.status == 400
    assert "prompt.multimodal_data: " in answer.error["message"]


def test_models_of_the_v2_protocol_take_images(server: Server):
    tiny = "/v2/models/tiny"
    inputs = [
        {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["It is <__media__>"]},
        {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64(PNG)]},
    ]
    body = {"text_input": "It is <__media__>", "image": [base64(PNG)], "max_tokens": 4, "temperature": 0}

    declared = server.get(tiny)[1]["inputs"]
    inferred = post(server, {"inputs": inputs, "parameters": {"max_tokens": 4, "temperature": 0.0}}, f"{tiny}/infer")
    generated = post(server, body, f"{tiny}/generate")
    refused = post(server, body | {"image": [base64(PNG)] * 2}, f"{tiny}/generate")

    assert {"name": "image", "datatype": "BYTES", "shape": [-1]} in declared
    assert generated.status == 200, generated.body
    outputs = {output["name"]: output["data"] for output in inferred.json["outputs"]}
    assert outputs["text_output"] == [generated.json["text_output"]]
    assert outputs["num_input_tokens"][0] > N_ROWS
    assert refused.status == 400
    assert "image: 2 images, and the text has <__media__> 1 times" in refused.body.decode()


SIDEWAYS = Pillow.Exif()
SIDEWAYS[0x0112] = 6
GOOD = {
    "JPEG turned by its EXIF": encoded(Pillow.new("RGB", (60, 50), RED), "JPEG", exif=SIDEWAYS.tobytes()),
    "animated GIF": encoded(
        Pillow.new("P", (60, 50), 1), "GIF", save_all=True, append_images=[Pillow.new("P", (60, 50), n) for n in (2, 3)]
    ),
    "CMYK JPEG": encoded(Pillow.new("CMYK", (60, 50), (0, 200, 200, 0)), "JPEG"),
    "16-bit PNG": encoded(Pillow.new("I;16", (60, 50), 40_000), "PNG"),
    "transparent PNG": encoded(Pillow.new("RGBA", (60, 50), (0, 0, 0, 0)), "PNG"),
    "WebP": plain("WEBP"),
    "one pixel": plain("PNG", (1, 1)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_an_unusual_image_is_answered_whatever_type_it_claims(server: Server, kind: str):
    answer = post(server, said(TEXT, image_url(data_url(GOOD[kind], "image/jpeg"))))

    assert answer.status == 200, answer.body
    assert answer.json["usage"]["prompt_tokens"] > N_ROWS


BAD = [
    (image_url(data_url(PNG[:60])), "invalid_image", "truncated or damaged"),
    (image_url(data_url(BOMB)), "invalid_image", "10000 x 10000 pixels"),
    (image_url(data_url(png(0, 5, 2, 8, b""))), "invalid_image", "has no pixels"),
    (image_url(data_url(b"<svg xmlns='x'/>", "image/svg+xml")), "unsupported_image", "SVG is not read"),
    (image_url(data_url(b"GIF?" + bytes(40))), "unsupported_image", "unknown kind"),
    (image_url("data:text/plain;base64,AAAA"), "invalid_image", "image/png"),
    (image_url("data:image/png;base64,AA A"), "invalid_image", "not base64"),
    (image_url("file:///etc/passwd"), "invalid_image", "data URL"),
    (image_url("http://169.254.169.254/latest/meta-data"), "image_not_fetched", "link-local|none of the hosts"),
    (image_url("http://localhost:22/"), "image_not_fetched", "none of the hosts"),
    (image_url("http://2130706433/"), "image_not_fetched", "none of the hosts"),
    (image_url("http://[::ffff:10.0.0.1]/"), "image_not_fetched", "not a public address|none of the hosts"),
    ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "unsupported_content", "input_audio"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "code", "words"), BAD)
def test_a_bad_image_is_refused_by_its_place_and_the_server_goes_on(server: Server, part, code: str, words: str):
    answer = post(server, said(TEXT, part))

    assert (answer.status, answer.error["code"]) == (400, code), answer.body
    assert answer.error["param"].startswith("messages[0].content[1]")
    assert any(word in answer.error["message"] for word in words.split("|")), answer.body
    assert post(server, said(TEXT, IMAGE)).status == 200


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_an_image_in_another_message_than_the_users_is_refused(server: Server, role: str):
    answer = post(server, said(IMAGE, role=role))

    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0]")
    assert "images are read in messages of the user only" in answer.error["message"]


def test_a_thousand_images_in_a_conversation_are_refused(server: Server):
    answer = post(server, {"messages": [said(*[IMAGE] * 50)["messages"][0] for _ in range(20)]})

    assert answer.status == 400
    assert answer.error["message"] == "messages: 1000 images, and a request has 100 at most"


def test_an_image_of_a_listed_host_is_fetched_and_redirects_elsewhere_are_not_followed(server: Server, hosted: str):
    fetched, redirected = (post(server, said(TEXT, image_url(hosted + path))) for path in ("/a.png", "/elsewhere"))

    assert fetched.status == 200, fetched.body
    assert fetched.json["usage"] == post(server, said(TEXT, IMAGE)).json["usage"] | {
        "prompt_tokens_details": fetched.json["usage"]["prompt_tokens_details"]
    }
    assert (redirected.status, redirected.error["code"]) == (400, "image_not_fetched")


def test_no_image_is_fetched_where_no_host_is_listed(limited: Server, hosted: str):
    answer = post(limited, said(TEXT, image_url(f"{hosted}/a.png")))

    assert (answer.status, answer.error["code"]) == (400, "unsupported_content")
    assert "this server fetches no images: send a data URL" in answer.error["message"]


def test_health_is_answered_while_many_large_images_are_decoded(server: Server, threads):
    large = said(image_url(data_url(plain("PNG", (2000, 2000)))))
    asking = [threads.submit(post, server, large) for _ in range(30)]

    statuses = [server.get("/health")[0] for _ in range(3)]

    assert not all(one.done() for one in asking)
    assert statuses == [200] * 3
    assert {one.result().status for one in asking} == {200}


def hold(colour: Colour) -> bytes:
    """A request with nearly half of all requests' pixels, which waits until the encoder's gate opens."""
    return request("POST", CHAT, chat(base64(plain("PNG", (SLOW, 1700), colour))))


# Another such image, and one that ends the request when the first was decoded.
PROBE = chat(base64(plain("PNG", (57, 1700))), base64(PNG[:60]))


def test_images_of_all_requests_share_one_memory(limited: Server, gate):
    with limited.connect() as first, limited.connect() as second:
        for connection, colour in ((first, RED), (second, BLUE)):
            connection.send(hold(colour))
        limited.wait_metric("transfer_active", 2)
        refused = post(limited, PROBE)
        gate.touch()
        answered = first.answer("POST"), second.answer("POST")

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "the images of all requests at once exceed the 650000 bytes allowed" in refused.error["message"]
    assert [answer.status for answer in answered] == [200, 200]
    assert post(limited, PROBE).status == 400


def test_a_client_that_leaves_frees_the_memory_of_its_images(limited: Server, gate):
    with limited.connect() as leaving, limited.connect() as staying:
        leaving.send(hold(GREEN))
        staying.send(hold(WHITE))
        limited.wait_metric("transfer_active", 2)
        refused = post(limited, PROBE)
        leaving.reset()

        assert refused.status == 503
        eventually(lambda: post(limited, PROBE).status == 400, what="room for another image")
        gate.touch()
        assert staying.answer("POST").status == 200


def test_clients_that_leave_while_their_images_are_decoded_free_their_memory(limited: Server):
    for _ in range(10):
        with limited.connect() as leaving:
            leaving.send(request("POST", CHAT, chat(base64(plain("PNG", (300, 300))))))
            leaving.reset()

    eventually(lambda: post(limited, PROBE).status == 400, what="room for another image")
