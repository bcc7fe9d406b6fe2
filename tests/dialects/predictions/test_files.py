import os
import pathlib
import threading

import gevent
import msgspec
import pytest
from gevent.event import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import OutputFailed
from corosrv.contracts.jobs.setup import FileOutput, FileRef, OutputChunk
from corosrv.dialects.predictions import files as upload
from corosrv.dialects.predictions.files import Files, LargeJson
from corosrv.dialects.predictions.files import encode as encode_json
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.values.addresses import DataUrl
from corosrv.workers.worker.values.outputs import encode
from tests.support.children import output
from tests.support.file_server import serving, status


@pytest.fixture
def server():
    with serving() as server:
        yield server


def _file(directory: pathlib.Path, name: str, content: bytes) -> pathlib.Path:
    path = directory / "author" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def _decoded(value):
    return msgspec.json.decode(b"".join(encode_json(value)))


@settings(deadline=None)
@given(st.binary(max_size=100), st.sampled_from(["a.png", "b.txt", "c"]))
def test_a_file_becomes_a_data_url_of_its_type_and_content(tmp_path_factory, content, name):
    directory = tmp_path_factory.getbasetemp()
    message = encode(_file(directory, name, content), 0, str(directory))

    url = Files().resolve(message, str(directory))

    types = {"a.png": "image/png", "b.txt": "text/plain", "c": "application/octet-stream"}
    assert DataUrl.parse(url) == DataUrl(types[name], content)


def test_files_are_put_where_they_stand_in_the_output(tmp_path):
    value = {"a": [_file(tmp_path, "a.txt", b"1"), "text"], "b": {"c": _file(tmp_path, "b.txt", b"2")}}

    resolved = Files().resolve(encode(value, 0, str(tmp_path)), str(tmp_path))

    assert resolved == {"a": ["data:text/plain;base64,MQ==", "text"], "b": {"c": "data:text/plain;base64,Mg=="}}


def test_a_value_without_files_is_passed_on_as_it_is(tmp_path):
    assert Files().resolve(OutputChunk([1, None], 0), str(tmp_path)) == [1, None]


def test_an_oversized_value_comes_back_whole_with_its_files(tmp_path):
    text = "ä\n" * MAX_VALUE
    message = encode({"text": text, "file": _file(tmp_path, "a.txt", b"1")}, 0, str(tmp_path))

    assert isinstance(message, FileOutput)
    assert Files().resolve(message, str(tmp_path)) == {"text": text, "file": "data:text/plain;base64,MQ=="}


def test_an_oversized_value_without_files_stays_text(tmp_path):
    value = {"text": "ä\n" * MAX_VALUE, "n": [1, None]}

    resolved = Files().resolve(encode(value, 0, str(tmp_path)), str(tmp_path))

    assert isinstance(resolved, LargeJson)
    assert max(map(len, resolved.pieces)) <= 1 << 20
    assert _decoded(resolved) == value


def test_a_large_file_is_encoded_while_others_go_on(tmp_path):
    content = os.urandom((32 << 20) + 1)
    message = encode(_file(tmp_path, "a.bin", content), 0, str(tmp_path))
    resolving = gevent.spawn(Files().resolve, message, str(tmp_path))
    has_run = Event()
    gevent.spawn(has_run.set)

    assert has_run.wait(5)
    assert not resolving.ready()
    url = _decoded(resolving.get(timeout=20))
    assert DataUrl.parse(url) == DataUrl("application/octet-stream", content)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ".", "", "a/b", "a\0b"])
def test_a_worker_cannot_name_files_outside_of_the_directory(tmp_path, name):
    (tmp_path / "secret").write_text("hunter2")
    directory = str(tmp_path / "prediction")

    for message in (
        FileOutput(name, "file_type", "text/plain", 0),
        FileOutput(name, "oversized", "application/json", 0),
        OutputChunk([None], 0, [FileRef([0], name, "text/plain")]),
    ):
        with pytest.raises(OutputFailed, match="outside of its directory"):
            Files().resolve(message, directory)


@pytest.mark.parametrize("place", [[5], ["a"], [0, "b"], []])
def test_a_worker_cannot_name_places_that_are_not_there(tmp_path, place):
    message = encode([_file(tmp_path, "a.txt", b"1")], 0, str(tmp_path))
    wrong = OutputChunk(message.output, 0, [FileRef(place, "a.txt", "text/plain")])

    with pytest.raises(OutputFailed, match="a place that the output does not have"):
        Files().resolve(wrong, str(tmp_path))


def test_a_file_that_is_gone_fails_the_prediction(tmp_path, server):
    message = encode(_file(tmp_path, "a.txt", b"1"), 0, str(tmp_path))
    os.unlink(tmp_path / "outputs" / "a.txt")

    for files in (Files(), Files(server.url)):
        with pytest.raises(OutputFailed, match=r"a\.txt cannot be read: No such file"):
            files.resolve(message, str(tmp_path))


def test_a_broken_spill_fails_the_prediction(tmp_path):
    message = encode("a" * MAX_VALUE, 0, str(tmp_path))
    (tmp_path / "outputs" / message.filename).write_text("{")

    with pytest.raises(OutputFailed, match="cannot be read"):
        Files().resolve(message, str(tmp_path))


def test_files_go_up_under_their_names_and_types(tmp_path, server):
    (tmp_path / "other").mkdir()
    same_name = _file(tmp_path / "other", "c.txt", b"3")
    value = [_file(tmp_path, "a b.png", b"1"), {"x": _file(tmp_path, "c.txt", b"2")}, same_name]

    resolved = Files(f"{server.url}/up/?key=1").resolve(encode(value, 0, str(tmp_path)), str(tmp_path))

    assert sorted(server.uploads) == [
        ("/up/a%20b.png?key=1", "image/png", b"1"),
        ("/up/c-0.txt?key=1", "text/plain", b"3"),
        ("/up/c.txt?key=1", "text/plain", b"2"),
    ]
    up = f"{server.url}/up"
    assert resolved == [f"{up}/a%20b.png", {"x": f"{up}/c.txt"}, f"{up}/c-0.txt"]


def test_an_upload_is_known_by_the_location_that_it_got(tmp_path, server):
    server.answers["/a.txt"] = status(201, Location="https://files.example/x/a.txt?signed=1#top")

    url = Files(server.url).resolve(encode(_file(tmp_path, "a.txt", b"1"), 0, str(tmp_path)), str(tmp_path))

    assert url == "https://files.example/x/a.txt"


def test_an_upload_follows_redirects_that_keep_its_body(tmp_path, server):
    server.answers["/a.txt"] = status(307, Location="/elsewhere?x=1")

    url = Files(server.url).resolve(encode(_file(tmp_path, "a.txt", b"1"), 0, str(tmp_path)), str(tmp_path))

    assert url == f"{server.url}/elsewhere"
    assert server.uploads[-1] == ("/elsewhere?x=1", "text/plain", b"1")


@pytest.mark.parametrize(
    "answer", [status(500), status(404), status(302, Location="/b"), status(308, Location="/a.txt")]
)
def test_a_failed_upload_fails_the_prediction(tmp_path, server, answer, capfd):
    server.answers["/a.txt"] = answer

    for value in (_file(tmp_path, "a.txt", b"1"), [_file(tmp_path, "a.txt", b"1")]):
        directory = tmp_path / str(isinstance(value, list))
        with pytest.raises(OutputFailed, match=r"a\.txt could not be uploaded"):
            Files(server.url).resolve(encode(value, 0, str(directory)), str(directory))
    assert "Traceback" not in capfd.readouterr().err


def test_an_upload_that_hangs_fails_in_time(tmp_path, server, monkeypatch):
    is_over = threading.Event()
    monkeypatch.setattr(upload, "TIME_LIMIT", 0.2)
    server.answers["/a.txt"] = lambda handler: is_over.wait(10)
    message = encode(_file(tmp_path, "a.txt", b"1"), 0, str(tmp_path))

    with pytest.raises(OutputFailed, match="could not be uploaded"):
        Files(server.url).resolve(message, str(tmp_path))
    is_over.set()


def test_uploads_of_one_output_overlap_and_keep_their_places(tmp_path, server):
    both_here = threading.Barrier(2)
    server.answers["*"] = lambda handler: (both_here.wait(10), handler.reply(200))
    value = [_file(tmp_path, name, b"1") for name in ("a.txt", "b.txt")]

    resolved = Files(server.url).resolve(encode(value, 0, str(tmp_path)), str(tmp_path))

    assert resolved == [f"{server.url}/a.txt", f"{server.url}/b.txt"]


def test_several_outputs_resolve_at_once(tmp_path, server):
    both_here = threading.Barrier(2)
    server.answers["*"] = lambda handler: (both_here.wait(10), handler.reply(200))
    files = Files(server.url)
    messages = [encode(_file(tmp_path, "a.txt", b"1"), index, str(tmp_path)) for index in range(2)]

    resolving = [gevent.spawn(files.resolve, message, str(tmp_path)) for message in messages]

    assert [one.get(timeout=10) for one in resolving] == [f"{server.url}/a.txt", f"{server.url}/a-1.txt"]


_PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys, threading, gevent
from corosrv.dialects.predictions.files import LargeJson
from corosrv.dialects.predictions.files import encode as encode_json
from corosrv.dialects.predictions.files import Files
from corosrv.contracts.jobs.setup import FileOutput
beats = []
def beat():
    while True:
        beats.append(1); gevent.sleep(0.01)
heart = gevent.spawn(beat)
print(Files(sys.argv[1]).resolve(FileOutput("a.txt", "file_type", "text/plain", 0), sys.argv[2]))
print(len(beats) > 3)
"""


def test_in_a_patched_process_others_go_on_while_a_file_goes_up(tmp_path, server):
    encode(_file(tmp_path, "a.txt", b"1"), 0, str(tmp_path))
    server.answers["/a.txt"] = lambda handler: (threading.Event().wait(0.3), handler.reply(200))

    said = output(_PATCHED, server.url, str(tmp_path)).split()

    assert said == [f"{server.url}/a.txt", "True"]
