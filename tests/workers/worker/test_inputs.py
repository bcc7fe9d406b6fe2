# ruff: noqa: UP045 - authors write Optional, too
import enum
import os
import socket
import threading
from typing import Any, Literal, Optional

import pytest

from corosrv.base.errors import InputFailed
from corosrv.worker import File, Input, Path, Secret
from corosrv.workers.worker.signatures.signature import read
from corosrv.workers.worker.values import download
from corosrv.workers.worker.values import inputs as value_inputs
from corosrv.workers.worker.values.inputs import Inputs
from tests.support.file_server import Answer, Handler, content, serving, status


class Colour(str, enum.Enum):
    RED = "red"


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """No proxy of the machine's stands between."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    with serving() as server:
        yield server


def _prepared(annotation: Any, value: Any, directory: Any, *default: Any) -> Any:
    with _inputs(annotation, directory, *default) as inputs:
        return inputs.prepare({"x": value})["x"]


def _inputs(annotation: Any, directory: Any, *default: Any) -> Inputs:
    def run(x): ...

    run.__annotations__["x"] = annotation
    run.__defaults__ = default or None
    return Inputs(read(run), str(directory), "tests")


@pytest.mark.parametrize(
    ("annotation", "value", "converted"),
    [
        (int, 5.0, 5),
        (float, 3, 3.0),
        (bool, True, True),
        (str, "https://example.com", "https://example.com"),
        (Optional[int], None, None),
        (Optional[int], 5.0, 5),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (dict[str, int], {"a": 1.0}, {"a": 1}),
        (dict, {"a": [None]}, {"a": [None]}),
        (Any, [1, "a", None], [1, "a", None]),
        (int | str, "3", "3"),
        (int | float, 3.0, 3.0),
        (float | str, 3, 3.0),
        (bool | int, 1, 1),
        (Literal["a", 1], 1.0, 1),
        (Colour, "red", Colour.RED),
        (Secret, "key", Secret("key")),
        (list[Secret], ["a"], [Secret("a")]),
    ],
)
def test_a_value_arrives_as_its_annotation_says(annotation, value, converted, tmp_path):
    prepared = _prepared(annotation, value, tmp_path)

    assert prepared == converted
    assert type(prepared) is type(converted)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, "5"), (int, 5.5), (int, True), (float, 10**400), (bool, 1), (str, None), (list[int], {}), (dict, []),
     (Colour, "blue"), (Literal[1], True), (int | str, [])],
)  # fmt: skip
def test_what_the_server_should_have_refused_is_not_guessed_at(annotation, value, tmp_path):
    with pytest.raises(InputFailed, match=r"^x: "):
        _prepared(annotation, value, tmp_path)


def test_defaults_are_filled_in_and_no_two_predictions_share_one(tmp_path):
    def run(n: int = 3, tags: list = Input(default=["a"]), note: Optional[str] = None, key: Secret = "hunter2"): ...

    first, second = (Inputs(read(run), str(tmp_path)).prepare({}) for _ in range(2))

    assert (first["n"], first["tags"], first["note"]) == (3, ["a"], None)
    assert first["key"].get_secret_value() == "hunter2"
    assert first["tags"] is not second["tags"]


def test_stars_stand_for_the_default_secret_and_only_where_there_is_one(tmp_path):
    stars = "*" * 10

    assert _prepared(Secret, stars, tmp_path, Secret("hunter2")).get_secret_value() == "hunter2"
    assert _prepared(Secret, stars, tmp_path).get_secret_value() == stars


def test_a_missing_input_is_told_by_name(tmp_path):
    with _inputs(int, tmp_path) as inputs, pytest.raises(InputFailed, match="x: is required"):
        inputs.prepare({})


@pytest.mark.parametrize("address", ["/etc/hostname", "file:///etc/hostname", "etc", "ftp://localhost/a"])
def test_a_local_file_is_refused_unless_it_is_the_authors_default(address, tmp_path):
    with pytest.raises(InputFailed, match="has to be an http, https or data URL"):
        _prepared(Path, address, tmp_path)

    assert _prepared(Path, "/etc/hostname", tmp_path, Path("/etc/hostname")) == Path("/etc/hostname")


def test_a_default_file_that_is_not_there_fails_the_prediction(tmp_path):
    with _inputs(File, tmp_path, "/nowhere/a") as inputs, pytest.raises(InputFailed, match="No such file"):
        inputs.prepare({})


def test_data_urls_become_files_and_are_gone_in_the_end(tmp_path):
    def run(a: Path, b: list[Path], c: Optional[Path], d: File): ...

    with Inputs(read(run), str(tmp_path)) as inputs:
        address = "data:image/png;base64,YWJj"
        values = inputs.prepare({"a": address, "b": [address, "data:,x"], "c": None, "d": "data:,y"})

        assert [path.read_bytes() for path in (values["a"], *values["b"])] == [b"abc", b"abc", b"x"]
        assert (values["a"].name, values["c"], values["d"].read()) == ("file.png", None, b"y")
        assert os.stat(values["a"].parent).st_mode & 0o077 == 0

    assert values["d"].closed
    assert list(tmp_path.iterdir()) == []


def test_broken_base64_fails_the_prediction_by_the_inputs_name(tmp_path):
    with pytest.raises(InputFailed, match=r"^x: broken base64"):
        _prepared(list[Path], ["data:;base64,!!!"], tmp_path)


def test_a_download_keeps_its_name_and_says_who_asks(server, tmp_path):
    server.answers["/dir/my%20cat.png"] = content(b"meow" * 100_000)

    with _inputs(Path, tmp_path) as inputs:
        path = inputs.prepare({"x": f"{server.url}/dir/my%20cat.png?width=3"})["x"]

        assert (path.name, path.read_bytes()) == ("my cat.png", b"meow" * 100_000)
    assert server.agents == ["tests"]


def test_up_to_eight_downloads_run_at_once(server, tmp_path):
    all_here = threading.Barrier(9)
    server.answers["/a"] = lambda handler: (all_here.wait(10), handler.reply(200, b"x"))

    with _inputs(list[Path], tmp_path) as inputs:
        preparing = threading.Thread(target=inputs.prepare, args=({"x": [f"{server.url}/a"] * 8},))
        preparing.start()
        all_here.wait(10)
        preparing.join(10)

        assert len(list(tmp_path.glob("inputs/*/a"))) == 8


def test_more_files_than_threads_come_in_order(server, tmp_path):
    for number in range(20):
        server.answers[f"/{number}"] = content(str(number).encode())

    with _inputs(list[Path], tmp_path) as inputs:
        paths = inputs.prepare({"x": [f"{server.url}/{number}" for number in range(20)]})["x"]

        assert [path.read_text() for path in paths] == [str(number) for number in range(20)]


@pytest.mark.parametrize("code", [404, 500, 304])
def test_a_bad_status_fails_the_prediction_and_is_named(server, tmp_path, code):
    server.answers["/a"] = status(code)

    with pytest.raises(InputFailed, match=f"^x: cannot be fetched: status {code}"):
        _prepared(Path, f"{server.url}/a", tmp_path)


def test_nobody_there_fails_the_prediction_without_telling_the_address(tmp_path):
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"http://user:hunter2@127.0.0.1:{unheard.getsockname()[1]}/a"
        with pytest.raises(InputFailed, match=r"^x: cannot be fetched: Connection refused") as raised:
            _prepared(Path, address, tmp_path)

    assert "hunter2" not in str(raised.value)


def test_a_body_that_breaks_off_is_no_file(server, tmp_path):
    def short(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.wfile.write(b"12345")
        handler.close_connection = True

    server.answers["/a"] = short

    with pytest.raises(InputFailed, match="the connection broke"):
        _prepared(Path, f"{server.url}/a", tmp_path)


def test_five_redirects_are_followed_and_a_sixth_is_not(server, tmp_path):
    for number in range(6):
        server.answers[f"/{number}"] = status(302, Location=f"/{number + 1}")
    server.answers["/6"] = content(b"there")

    with _inputs(Path, tmp_path) as inputs:
        path = inputs.prepare({"x": f"{server.url}/1"})["x"]
        assert (path.name, path.read_bytes()) == ("1", b"there")
    with pytest.raises(InputFailed, match="more than 5 redirects"):
        _prepared(Path, f"{server.url}/0", tmp_path)


@pytest.mark.parametrize("target", ["file:///etc/hostname", "data:,x", "ftp://localhost/"])
def test_a_redirect_leads_nowhere_but_to_the_web(server, tmp_path, target):
    server.answers["/a"] = status(302, Location=target)

    with pytest.raises(InputFailed, match="redirects to something else"):
        _prepared(Path, f"{server.url}/a", tmp_path)


def test_a_server_that_never_answers_has_its_time(server, tmp_path, monkeypatch):
    monkeypatch.setattr(value_inputs, "TIME_LIMIT", 0.2)
    is_over = threading.Event()
    server.answers["/a"] = lambda handler: is_over.wait(10)

    with pytest.raises(InputFailed, match=r"^x: cannot be fetched"):
        _prepared(Path, f"{server.url}/a", tmp_path)
    is_over.set()


class _Clock:
    """In place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_each_download_has_its_own_time(server, tmp_path, monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(value_inputs, "AT_ONCE", 1)
    for module in (value_inputs, download):
        monkeypatch.setattr(module, "time", clock)
    for number in range(3):
        server.answers[f"/{number}"] = lambda handler: (setattr(clock, "now", clock.now + 50), handler.reply(200, b"x"))

    with _inputs(list[Path], tmp_path) as inputs:
        paths = inputs.prepare({"x": [f"{server.url}/{number}" for number in range(3)]})["x"]

        assert [path.read_bytes() for path in paths] == [b"x"] * 3


def test_a_server_that_drips_has_its_time_too(server, tmp_path, monkeypatch):
    monkeypatch.setattr(value_inputs, "TIME_LIMIT", 0.3)
    is_dripping, is_over = threading.Event(), threading.Event()
    server.answers["/a"] = _drip(is_dripping, is_over)

    with pytest.raises(InputFailed, match=r"^x: cannot be fetched"):
        _prepared(Path, f"{server.url}/a", tmp_path)
    is_over.set()


def _drip(is_dripping: threading.Event, is_over: threading.Event) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000000")
        handler.end_headers()
        while not is_over.wait(0.001):
            handler.wfile.write(b"." * 1000)
            is_dripping.set()

    return answer


def test_a_cancelled_download_leaves_off_while_its_server_goes_on(server, tmp_path):
    is_dripping, is_over = threading.Event(), threading.Event()
    server.answers["/a"] = _drip(is_dripping, is_over)
    inputs = _inputs(Path, tmp_path)
    preparing = _preparing(inputs, f"{server.url}/a", [])
    assert is_dripping.wait(10)

    inputs.close()

    preparing.join(10)
    _join_fetches()
    is_over.set()


def _join_fetches() -> None:
    """Of this test and of those before it."""
    for thread in threading.enumerate():
        if thread.name == "corosrv-fetch":
            thread.join(10)
            assert not thread.is_alive()


def _preparing(inputs: Inputs, address: str, failed: list[InputFailed]) -> threading.Thread:
    """A thread that prepares them, and keeps how that failed."""

    def prepare() -> None:
        try:
            inputs.prepare({"x": address})
        except InputFailed as error:
            failed.append(error)

    thread = threading.Thread(target=prepare)
    thread.start()
    return thread


def test_a_cancel_ends_the_wait_at_once(server, tmp_path):
    is_asked, is_over = threading.Event(), threading.Event()
    server.answers["/a"] = lambda handler: (is_asked.set(), is_over.wait(10))
    inputs = _inputs(Path, tmp_path)
    failed: list[InputFailed] = []
    preparing = _preparing(inputs, f"{server.url}/a", failed)
    assert is_asked.wait(10)

    inputs.cancel()
    preparing.join(5)

    assert not preparing.is_alive()
    assert "cancelled" in str(failed[0])
    is_over.set()
    inputs.close()


def test_a_download_that_ends_after_its_prediction_leaves_nothing(server, tmp_path):
    is_asked, may_answer = threading.Event(), threading.Event()
    server.answers["/a"] = lambda handler: (is_asked.set(), may_answer.wait(10), handler.reply(200, b"x"))
    inputs = _inputs(Path, tmp_path)
    preparing = _preparing(inputs, f"{server.url}/a", [])
    assert is_asked.wait(10)

    inputs.close()
    may_answer.set()
    _join_fetches()
    preparing.join(10)

    assert list(tmp_path.iterdir()) == []


def test_a_name_and_password_in_an_address_go_to_its_host_alone(server, tmp_path):
    with serving() as other:
        seen = []
        server.answers["/a"] = lambda handler: (
            seen.append(handler.headers["Authorization"]),
            handler.reply(302, Location=f"{other.url}/b"),
        )
        other.answers["/b"] = lambda handler: (seen.append(handler.headers["Authorization"]), handler.reply(200))
        _prepared(Path, server.url.replace("//", "//me:p%40ss@") + "/a", tmp_path)

    assert seen == ["Basic bWU6cEBzcw==", None]


def test_a_proxy_of_the_environment_is_asked(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    server.answers["http://nowhere.example/a"] = content(b"through")

    with _inputs(Path, tmp_path) as inputs:
        assert inputs.prepare({"x": "http://nowhere.example/a"})["x"].read_bytes() == b"through"


def test_names_that_lead_elsewhere_stay_in_the_directory(server, tmp_path):
    asked = ["/%2e%2e", "/a/..", "/..%2F..%2Fx", "/a%00b", "/" + "n" * 10_000]
    server.answers["*"] = content(b"x")

    with _inputs(list[Path], tmp_path) as inputs:
        paths = inputs.prepare({"x": [server.url + path for path in asked]})["x"]

        assert all(path.resolve().parents[1] == tmp_path / "inputs" and path.read_bytes() == b"x" for path in paths)
