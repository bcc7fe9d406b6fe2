"""Fetching from a real server: what is allowed, and each way in which a URL could lead elsewhere."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.pywsgi import WSGIServer

from corosrv.errors import InvalidImage, NotSupported
from corosrv.images.fetching import ImageFetcher
from tests.images.pictures import plain

PNG = plain("PNG")


@pytest.fixture
def served() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a server, and the requests that it got."""
    seen: list[dict[str, Any]] = []

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        seen.append(environ)
        path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
        if path == "/redirect":
            start("302 Found", [("Location", query)])
            return []
        if path == "/missing":
            start("404 Not Found", [])
            return [b"secret words"]
        start("200 OK", [("Content-Type", "image/png")])
        if path == "/endless":
            return iter(lambda: bytes(10_000), b"")
        if path == "/slow":
            return slow()
        return [PNG]

    def slow() -> Iterator[bytes]:
        while True:
            yield b"x"
            gevent.sleep(0.02)

    server = WSGIServer(("127.0.0.1", 0), answer, log=None)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.stop(timeout=1)


def fetcher(*hosts: str, max_bytes: int = 100_000, seconds: float = 5.0) -> ImageFetcher:
    return ImageFetcher(hosts, max_bytes, seconds)


def test_an_image_of_an_allowed_address_is_fetched(served):
    url, seen = served

    assert fetcher("127.0.0.1").fetch(f"{url}/a.png?b=c", "image") == PNG
    assert seen[0]["QUERY_STRING"] == "b=c"
    assert "HTTP_COOKIE" not in seen[0]
    assert "HTTP_AUTHORIZATION" not in seen[0]


def test_without_hosts_nothing_is_fetched(served):
    url, seen = served

    with pytest.raises(NotSupported, match="fetches no images"):
        fetcher().fetch(url, "image")
    assert seen == []


@pytest.mark.parametrize("host", ["images.example", "*.example", "10.0.0.0/8", "localhost"])
def test_an_address_that_is_not_listed_is_refused(served, host: str):
    url, seen = served

    with pytest.raises(InvalidImage, match=r"127\.0\.0\.1 is"):
        fetcher(host).fetch(url, "image")
    assert seen == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "100.64.0.1", "0.0.0.0"]
)
def test_a_listed_name_leads_to_no_private_address(monkeypatch: pytest.MonkeyPatch, address: str):
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)

    with pytest.raises(InvalidImage, match=r"images\.example is (not a public|a link-local) address") as refused:
        fetcher("images.example").fetch("http://images.example/a.png", "image")
    assert refused.value.code == "image_not_fetched"


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch, served):
    """A name whose second look-up leads elsewhere is looked up once."""
    url, seen = served
    port = int(url.rpartition(":")[2])
    look_up, answers = socket.getaddrinfo, [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]]

    def rebinding(host: str, *rest: Any, **more: Any) -> Any:
        return answers.pop() if host == "images.example" else look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)

    assert fetcher("images.example", "127.0.0.1").fetch(f"http://images.example:{port}/a", "image") == PNG
    assert seen[0]["HTTP_HOST"] == f"images.example:{port}"


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.2/a", "http://127.0.0.1:1/a", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd",
     "ftp://127.0.0.1/a", "//localhost/a"],
)  # fmt: skip
def test_no_redirect_leads_elsewhere(served, target: str):
    url, seen = served

    with pytest.raises(InvalidImage, match="it redirects to"):
        fetcher("127.0.0.0/8", "localhost").fetch(f"{url}/redirect?{target}", "image")
    assert len(seen) == 1


def test_a_redirect_within_the_host_is_followed_five_times_at_most(served):
    url, seen = served

    assert fetcher("127.0.0.1").fetch(f"{url}/redirect?/a.png", "image") == PNG
    seen.clear()
    with pytest.raises(InvalidImage, match="more than 5 redirects"):
        fetcher("127.0.0.1").fetch(f"{url}/redirect?", "image")
    assert len(seen) == 6


def test_more_bytes_than_allowed_end_the_fetch(served):
    url, _ = served

    with pytest.raises(InvalidImage, match="more than the 50000 bytes allowed"):
        fetcher("127.0.0.1", max_bytes=50_000).fetch(f"{url}/endless", "image")


def test_a_slow_host_is_left_in_time(served):
    url, _ = served

    with gevent.Timeout(5), pytest.raises(InvalidImage, match=r"did not arrive within 0\.2 s"):
        fetcher("127.0.0.1", seconds=0.2).fetch(f"{url}/slow", "image")


def test_an_error_of_the_host_is_told_without_its_words(served):
    url, _ = served

    with pytest.raises(InvalidImage) as refused:
        fetcher("127.0.0.1").fetch(f"{url}/missing", "image")
    assert str(refused.value) == "image: the image's host answers with status 404"


def test_a_closed_port_is_told_without_details():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(InvalidImage) as refused:
            fetcher("127.0.0.1").fetch(f"http://127.0.0.1:{bound.getsockname()[1]}/", "image")
    assert str(refused.value) == "image: the image could not be fetched"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://127.0.0.1/a", "gopher://127.0.0.1/", "127.0.0.1/a", "", "http://",
     "http://127.0.0.1 /", "http://127.0.0.1/\r\nX: y", "http://user:pass@127.0.0.1/", "http://127.0.0.1/" + "a" * 4096,
     "http://[::1", "blob:x", "javascript:x"],
)  # fmt: skip
def test_another_kind_of_url_is_refused(url: str):
    with pytest.raises(InvalidImage, match="a data URL, or one of http or https") as refused:
        fetcher("127.0.0.1").fetch(url, "image")
    assert len(str(refused.value)) < 200


def test_a_fetch_that_fails_gives_its_permit_back(served):
    url, _ = served
    images = fetcher("127.0.0.1", seconds=2)
    for _ in range(20):
        with pytest.raises(InvalidImage, match="404"):
            images.fetch(f"{url}/missing", "image")

    assert images.fetch(f"{url}/a", "image") == PNG
