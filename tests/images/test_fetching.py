"""Fetching from a real server: what is allowed, and each way in which a URL could lead elsewhere."""

import contextlib
import gzip
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.pywsgi import WSGIServer
from gevent.server import StreamServer

from corosrv.base.errors import InvalidImage, NotSupported, TooBusy
from corosrv.contracts.settings import ImageSettings
from corosrv.images import fetching
from corosrv.images.fetching import ImageFetcher
from corosrv.images.reader import ImageReader
from tests.images.pictures import plain
from tests.support.certificates import self_signed

PNG = plain("PNG")
WAIT = 30.0  # seconds for what should come soon


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
    "host",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.1.", "127.0.0.1", "10.0.0.1", "169.254.169.254", "0",
     "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]",
     "localhost", "intranet", "evil-images.example", "images.example.evil.test", "aexample.com", "example.com",
     "images%2eexample", "8.8.8.8"],
)  # fmt: skip
def test_a_host_that_is_not_listed_is_not_even_looked_up(monkeypatch: pytest.MonkeyPatch, host: str):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))

    with pytest.raises(InvalidImage, match="none of the hosts that the operator allows"):
        fetcher("images.example", "*.example.com", "203.0.113.0/24").fetch(f"http://{host}/a.png", "image")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.9", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "::1", "::", "fe80::1", "fd00::1", "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::"],
)  # fmt: skip
def test_a_listed_name_leads_to_no_private_address(monkeypatch: pytest.MonkeyPatch, address: str):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    entries = [(family, socket.SOCK_STREAM, 6, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)

    with pytest.raises(InvalidImage, match=r"images\.example is (not a public|a link-local) address") as refused:
        fetcher("images.example").fetch("http://images.example/a.png", "image")
    assert refused.value.code == "image_not_fetched"


@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00:ec2::254]"])
def test_a_link_local_address_is_refused_whatever_is_listed(host: str):
    with pytest.raises(InvalidImage, match="is a link-local address"):
        fetcher("0.0.0.0/0", "::/0").fetch(f"http://{host}/latest/meta-data", "image")


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


def test_an_image_as_large_as_allowed_is_fetched(served):
    url, _ = served

    assert fetcher("127.0.0.1", max_bytes=len(PNG)).fetch(f"{url}/a.png", "image") == PNG
    with pytest.raises(InvalidImage, match=f"more than the {len(PNG) - 1} bytes allowed"):
        fetcher("127.0.0.1", max_bytes=len(PNG) - 1).fetch(f"{url}/a.png", "image")


def test_a_url_has_4096_characters_at_most(served):
    url, _ = served
    longest = f"{url}/".ljust(4096, "a")

    assert fetcher("127.0.0.1").fetch(longest, "image") == PNG
    with pytest.raises(InvalidImage, match="a data URL, or one of http or https"):
        fetcher("127.0.0.1").fetch(longest + "a", "image")


def test_more_fetches_than_may_run_wait_and_are_told_to_come_again(served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "_AT_ONCE", 1)
    images, (url, _) = fetcher("127.0.0.1", seconds=0.3), served

    slow = [gevent.spawn(images.fetch, f"{url}/slow", "image") for _ in range(5)]
    gevent.joinall(slow, timeout=WAIT)

    busy = [one.exception for one in slow if isinstance(one.exception, TooBusy)]
    assert len(busy) >= 3  # one had the permit, and left it to another when their time was over
    assert str(busy[0]) == "too many images are being fetched: try again"


def test_a_host_that_does_not_answer_delays_no_other(served, hearing):
    images = fetcher("127.0.0.1", "127.0.0.2", seconds=WAIT)
    (silent, _), (url, _) = hearing, served
    waiting = [
        gevent.spawn(images.fetch, silent.replace("127.0.0.1", "127.0.0.2") + "/silent", "image") for _ in range(20)
    ]
    gevent.idle()

    with gevent.Timeout(WAIT / 2):
        assert images.fetch(url, "image") == PNG

    gevent.killall(waiting)
    assert images._hosts == {}


@pytest.fixture
def hearing() -> Iterator[tuple[str, Event]]:
    """The URL of a server that sends pieces of an image for ever, or nothing at all, and when its client hung up."""
    is_left = Event()

    def serve(connection: Any, _: Any) -> None:
        is_endless = b"/endless" in connection.recv(4096)
        with contextlib.suppress(OSError):
            if is_endless:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while is_endless:
                connection.sendall(b"x")
                gevent.sleep(0.005)
            connection.recv(1)
        is_left.set()

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}", is_left
    server.stop(timeout=1)


@pytest.mark.parametrize(
    ("path", "limits", "words"),
    [
        ("/endless", {"max_bytes": 1 << 30, "seconds": 0.2}, "did not arrive"),
        ("/silent", {"max_bytes": 1 << 30, "seconds": 0.2}, "did not arrive"),
        ("/endless", {"max_bytes": 10}, "more than the 10 bytes allowed"),
    ],
)
def test_a_fetch_that_took_too_long_or_was_refused_leaves_no_connection(hearing, path: str, limits: Any, words: str):
    url, is_left = hearing

    with pytest.raises(InvalidImage, match=words) as refused:
        fetcher("127.0.0.1", **limits).fetch(url + path, "image")

    assert is_left.wait(WAIT)
    assert refused.value.__traceback__ is not None  # a refusal that is kept keeps nothing open


@pytest.mark.parametrize("addresses", [("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")])
def test_of_several_addresses_the_first_that_takes_a_connection_is_asked(
    served, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, str]
):
    url, seen = served
    port = int(url.rpartition(":")[2])
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: entries if host == "a.example" else look_up(host, *rest, **more),
    )

    assert fetcher("a.example", "127.0.0.0/8").fetch(f"http://a.example:{port}/a.png", "image") == PNG
    assert len(seen) == 1


@pytest.fixture(scope="module")
def certified(tmp_path_factory) -> tuple[ssl.SSLContext, str]:
    """The context of a server called `localhost`, and the file of its certificate."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    context, certificate = self_signed(tmp_path_factory.mktemp("certificate"), openssl)
    return context, str(certificate)


@pytest.mark.parametrize(
    ("name", "is_trusted", "is_fetched"),
    [("localhost", True, True), ("localhost", False, False), ("other.example", True, False)],
)
def test_a_host_of_https_has_a_trusted_certificate_of_its_name(
    certified, monkeypatch: pytest.MonkeyPatch, name: str, is_trusted: bool, is_fetched: bool
):
    context, certificate = certified
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: look_up("127.0.0.1" if host == name else host, *rest, **more)
    )
    server = WSGIServer(("127.0.0.1", 0), answer_with_png, log=None, error_log=None, ssl_context=context)
    server.start()
    images, url = fetcher(name, "127.0.0.1"), f"https://{name}:{server.server_port}/a.png"
    try:
        if is_fetched:
            assert images.fetch(url, "image") == PNG
        else:
            with pytest.raises(InvalidImage, match="image: the image could not be fetched"):
                images.fetch(url, "image")
    finally:
        server.stop(timeout=1)


def answer_with_png(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    start("200 OK", [("Content-Type", "image/png")])
    return [PNG]


@pytest.fixture
def answering() -> Iterator[Callable[[Iterator[bytes]], str]]:
    """Starts a server that sends these pieces to whoever connects, and then hangs up; returns its URL."""
    servers = []

    def start(pieces: Iterator[bytes]) -> str:
        def answer(connection: Any, _: Any) -> None:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_RDWR)

        server = StreamServer(("127.0.0.1", 0), answer)
        server.start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/a.png"

    yield start
    for server in servers:
        server.stop(timeout=1)


def dribble(piece: bytes) -> Iterator[bytes]:
    for _ in range(500):
        yield piece
        gevent.sleep(0.02)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_host_whose_answer_never_begins_is_left_in_time(answering, first: bytes):
    url = answering(chain([first], dribble(b"x")))

    with gevent.Timeout(5), pytest.raises(InvalidImage, match=r"did not arrive within 0\.2 s"):
        fetcher("127.0.0.1", seconds=0.2).fetch(url, "image")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\x89PNG",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x89PNG",
        b"",
    ],
)
def test_an_answer_that_is_none_is_told_without_details(answering, answer: bytes):
    with pytest.raises(InvalidImage) as refused:
        fetcher("127.0.0.1").fetch(answering(iter([answer])), "image")

    assert str(refused.value) == "image: the image could not be fetched"


def test_a_body_that_is_compressed_is_not_inflated(answering):
    body = gzip.compress(bytes(1_000_000))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    images = ImageReader(ImageSettings(image_hosts="127.0.0.1")).intake()

    with pytest.raises(InvalidImage, match="a compressed file is not read here"):
        images.from_url(answering(iter([head.encode() + body])), "image")


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
