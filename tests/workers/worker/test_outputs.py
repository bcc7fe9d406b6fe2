import dataclasses
import datetime
import decimal
import enum
import io
import json
import math
import os
import pathlib
import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import OutputFailed
from corosrv.contracts.jobs.setup import FileOutput, FileRef, OutputChunk
from corosrv.worker import BaseModel, Path, Secret
from corosrv.workers.wire.messages import MAX_VALUE
from corosrv.workers.worker.values.outputs import encode


class Colour(enum.Enum):
    RED = "red"


class Answer(BaseModel):
    text: str
    file: Path | None = None


@dataclasses.dataclass
class Plain:
    when: datetime.date


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON)
def test_json_values_are_sent_as_they_are(tmp_path_factory, value):
    assert encode(value, 3, str(tmp_path_factory.getbasetemp())) == OutputChunk(value, 3)


@settings(deadline=None)
@given(st.text(st.characters()) | st.lists(st.text(st.characters(categories=["Cs"]))))
def test_every_text_can_be_sent(tmp_path_factory, text):
    msgspec.json.encode(encode(text, 0, str(tmp_path_factory.getbasetemp())))


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (iter([1]), [1]),
        ({1: "a", None: "b", Colour.RED: "c", 1.5: "d"}, {"1": "a", "null": "b", "red": "c", "1.5": "d"}),
        ({True: "a"}, {"true": "a"}),
        (Colour.RED, "red"),
        (b"abc", "YWJj"),
        (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc), "2026-01-02T03:00:00+00:00"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Plain(datetime.date(2026, 1, 2)), {"when": "2026-01-02"}),
        (Answer("x"), {"text": "x", "file": None}),
        (Secret("hunter2"), "*" * 10),
        ([math.nan, math.inf, -math.inf, 1.5], [None, None, None, 1.5]),
        (math.nan, None),
        (2**80, 2**80),
    ],
)
def test_what_authors_return_has_a_json_form(value, sent, tmp_path):
    assert encode(value, 0, str(tmp_path)).output == sent


def test_arrays_and_models_of_other_packages_have_a_json_form(tmp_path):
    numpy = pytest.importorskip("numpy")
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", a=(int, ...), file=(pathlib.Path, ...))(a=1, file=_file(tmp_path, "m.txt"))

    value = [numpy.arange(2), numpy.float32(1.5), numpy.int64(3), numpy.bool_(True), numpy.array(7), model]
    chunk = encode(value, 0, str(tmp_path))

    assert chunk.output == [[0, 1], 1.5, 3, True, 7, {"a": 1, "file": None}]
    assert [ref.path for ref in chunk.files] == [[5, "file"]]


def test_a_model_is_sent_as_its_author_dumps_it(tmp_path):
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel, extra="allow"):
        hidden: str = pydantic.Field(default="hidden", exclude=True)
        key: Secret = Secret("hunter2")
        keys: tuple[Secret, ...] = (Secret("hunter2"),)
        path: pathlib.Path

        @pydantic.field_serializer("number", check_fields=False)
        def twice(self, number: int) -> int:
            return 2 * number

        number: int = 1

        @pydantic.computed_field
        @property
        def length(self) -> int:
            return 3

    class Whole(pydantic.RootModel[list[int]]):
        pass

    class Older:
        def dict(self):
            return {"a": Whole([1])}

    stars = "*" * 10
    chunk = encode([Model(path=_file(tmp_path, "m.txt"), more=[Older()])], 0, str(tmp_path))

    assert chunk.output == [
        {"key": stars, "keys": [stars], "path": None, "number": 2, "length": 3, "more": [{"a": [1]}]}
    ]
    assert [ref.path for ref in chunk.files] == [[0, "path"]]


def _file(directory: pathlib.Path, name: str, content: bytes = b"abc") -> pathlib.Path:
    path = directory / "author" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def _kept(directory: pathlib.Path, name: str) -> bytes:
    return (directory / "outputs" / name).read_bytes()


def test_a_file_alone_is_a_chunk_of_its_own(tmp_path):
    message = encode(Path(_file(tmp_path, "a.png")), 4, str(tmp_path))

    assert message == FileOutput("a.png", "file_type", "image/png", 4)
    assert _kept(tmp_path, "a.png") == b"abc"
    assert os.stat(tmp_path / "outputs").st_mode & 0o077 == 0


def test_files_are_found_in_lists_objects_and_models(tmp_path):
    path = _file(tmp_path, "a.bin")

    chunk = encode({"b": [Answer("x", Path(path)), path], "c": "a.bin"}, 0, str(tmp_path))

    assert chunk.output == {"b": [{"text": "x", "file": None}, None], "c": "a.bin"}
    assert [ref.path for ref in chunk.files] == [["b", 0, "file"], ["b", 1]]
    assert {ref.mime_type for ref in chunk.files} == {"application/octet-stream"}


def test_a_file_that_is_written_over_for_the_next_chunk_keeps_its_content(tmp_path):
    names = [
        encode(_file(tmp_path, "out.txt", content), index, str(tmp_path)).filename
        for index, content in enumerate([b"one", b"two", b"three"])
    ]

    assert len(set(names)) == 3
    assert [_kept(tmp_path, name) for name in names] == [b"one", b"two", b"three"]
    assert all(name.endswith(".txt") for name in names)


def test_equal_names_within_one_output_become_distinct(tmp_path):
    path = _file(tmp_path, "a.txt")

    names = [ref.filename for ref in encode([path] * 4, 0, str(tmp_path)).files]

    assert len(set(names)) == 4


def test_open_files_are_sent_whole_and_as_bytes(tmp_path):
    text, used = io.StringIO("ä"), io.BytesIO(b"abc")
    used.read()
    with open(_file(tmp_path, "a.png", b"\xff\x00")) as as_text, open(_file(tmp_path, "b.txt"), "rb") as as_bytes:
        as_bytes.read()
        chunk = encode([text, used, as_text, as_bytes], 0, str(tmp_path))

    names = [ref.filename for ref in chunk.files]
    assert [_kept(tmp_path, name) for name in names] == ["ä".encode(), b"abc", b"\xff\x00", b"abc"]
    assert names == ["output", "output-0", "a.png", "b.txt"]


def _bad_files(directory: pathlib.Path) -> dict[str, object]:
    os.mkfifo(directory / "fifo")
    closed = open(_file(directory, "closed"))  # noqa: SIM115
    closed.close()
    return {
        "missing": directory / "missing.png",
        "directory": directory,
        "fifo": directory / "fifo",
        "device": Path("/dev/zero"),
        "closed": closed,
        "loop": Path("/proc/self/fd/-1"),
        "nul": Path("a\0b"),
    }


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "device", "closed", "loop", "nul"])
def test_a_file_that_cannot_be_read_fails_the_prediction_and_is_named(tmp_path, kind):
    with pytest.raises(OutputFailed, match=r"the output file \S+ cannot be read: \w"):
        encode(_bad_files(tmp_path)[kind], 0, str(tmp_path))


def test_a_file_that_is_open_for_writing_alone_fails_the_prediction(tmp_path):
    with open(tmp_path / "a", "wb") as file, pytest.raises(OutputFailed, match="a cannot be read: read"):
        encode(file, 0, str(tmp_path))


def test_a_directory_that_takes_no_files_fails_the_prediction(tmp_path):
    (tmp_path / "outputs").write_text("in the way")

    with pytest.raises(OutputFailed, match="cannot be written: Not a directory"):
        encode("a" * MAX_VALUE, 0, str(tmp_path))


def test_a_value_without_json_form_is_named_with_its_place(tmp_path):
    with pytest.raises(OutputFailed, match=r"the output at a\.1 is of type object"):
        encode({"a": [1, object()]}, 0, str(tmp_path))
    with pytest.raises(OutputFailed, match="the output is of type object"):
        encode(object(), 0, str(tmp_path))
    with pytest.raises(OutputFailed, match="key of type tuple"):
        encode({(1, 2): 3}, 0, str(tmp_path))


def test_a_value_that_holds_itself_is_refused(tmp_path):
    endless: list[object] = []
    endless.append(endless)

    with pytest.raises(OutputFailed, match="nested deeper than"):
        encode(endless, 0, str(tmp_path))


@pytest.mark.parametrize("text", ["a" * (MAX_VALUE - 1), "ä" * (MAX_VALUE // 2), "\n" * (MAX_VALUE // 2)])
def test_a_value_over_the_limit_goes_into_a_file(tmp_path, text):
    message = encode([text, _file(tmp_path, "a.txt")], 2, str(tmp_path))

    assert isinstance(message, FileOutput)
    assert (message.kind, message.index, message.mime_type) == ("oversized", 2, "application/json")
    assert message.files == [FileRef([1], "a.txt", "text/plain")]
    assert json.loads(_kept(tmp_path, message.filename)) == [text, None]


def test_a_value_at_the_limit_goes_into_the_message(tmp_path):
    message = encode("a" * (MAX_VALUE - 2), 0, str(tmp_path))

    assert isinstance(message, OutputChunk)
    assert len(msgspec.json.encode(message)) < MAX_VALUE + 1000


def test_two_large_values_have_two_files(tmp_path):
    names = {encode("a" * MAX_VALUE, index, str(tmp_path)).filename for index in range(2)}

    assert len(names) == 2


def test_a_single_output_of_a_generator_is_no_list(tmp_path):
    assert encode("a", 0, str(tmp_path)) == OutputChunk("a", 0)
    assert encode(["a"], 0, str(tmp_path)) == OutputChunk(["a"], 0)
