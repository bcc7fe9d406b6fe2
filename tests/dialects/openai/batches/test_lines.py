"""Lines of batches: what is refused before one runs, and files of results that a killed process left."""

import io
import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from corosrv.base.errors import Refused, SettingsError
from corosrv.dialects.openai.batches import lines
from corosrv.dialects.openai.batches.lines import LineCheck, LineReader, LineResponse, ResultFile, numbered_lines

CHAT = "/v1/chat/completions"


def line(custom_id: str = "a", url: str = CHAT, method: str = "POST", **body) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body}).encode()


def check(path: Path, *texts: bytes, most_bytes: int = 1000, most_lines: int = 100) -> LineCheck:
    path.write_bytes(b"\n".join(texts))
    found = LineCheck(most_lines=most_lines)
    reader = LineReader(path, most_bytes, CHAT)
    while not found.is_full and (some := reader.next_slice()):
        found.add(some)
    reader.close()
    found.finish()
    return found


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[" * 100_000, "line_too_large", None),
        (b"[" * 900, "invalid_json", None),
        (b'{"custom_id": "a"}', "missing_required_parameter", "method"),
        (b"\xff", "invalid_json", None),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("a" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(url="/v1/files"), "invalid_url", "url"),
        (line(stream=True), "unsupported_parameter", "body.stream"),
        (line(background=True), "unsupported_parameter", "body.background"),
        (line("fine"), "duplicate_custom_id", "custom_id"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": []}', "invalid_json", None),
    ],
)
def test_a_line_that_cannot_run_is_told_with_its_number(tmp_path: Path, text: bytes, code: str, param: str):
    found = check(tmp_path / "lines", line("fine", stream=False), b"", text, line("also fine"))

    assert [(fault.line, fault.code, fault.param) for fault in found.faults] == [(3, code, param)]
    assert found.n_lines == 3


def test_a_good_file_has_no_faults(tmp_path: Path):
    found = check(tmp_path / "lines", line("a"), line("b"), b" ", line("c"), b"")

    assert (found.n_lines, found.faults) == (3, [])


@pytest.mark.parametrize(("texts", "code"), [((b"", b"\n"), "empty_file"), ((line("a"), line("b")), "too_many_lines")])
def test_a_file_must_have_lines_and_not_too_many(tmp_path: Path, texts: tuple[bytes, ...], code: str):
    found = check(tmp_path / "lines", *texts, most_lines=1)

    assert [fault.code for fault in found.faults] == [code]


def test_a_file_of_bad_lines_is_given_up_after_a_hundred(tmp_path: Path):
    found = check(tmp_path / "lines", *[b"x"] * 20_000, most_lines=50_000)

    assert len(found.faults) == lines.MOST_FAULTS
    assert found.n_lines < 1000, "the rest was not read"


def test_a_line_of_a_hundred_megabytes_takes_no_memory():
    class Long(io.RawIOBase):
        """A line of that length, and a short one."""

        left = 100_000_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer) -> int:
            n = min(len(buffer), self.left)
            buffer[:n] = b"x" * n if n else b""
            self.left -= n
            return n

    source = io.BufferedReader(Long())
    tracemalloc.start()
    try:
        found = list(numbered_lines(source, 100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == [(1, None)]
    assert peak < 2_000_000


def result(custom_id: str, status: int = 200) -> bytes:
    return lines.result(custom_id, LineResponse(status, "req_1", msgspec.Raw(b'{"a":1}')))


@pytest.mark.parametrize("torn", [b"", b'{"id":"bat', result("c")[:-1], b"\0" * 100])
def test_half_a_line_is_cut_off_when_results_are_opened_again(tmp_path: Path, torn: bytes):
    path = tmp_path / "out"
    path.write_bytes(result("a") + result("b", 400) + torn)

    file = ResultFile(path)
    file.add("c", result("c"))
    file.close()

    assert (file.done, file.n_failed) == ({"a", "b", "c"}, 1)
    assert [json.loads(text)["custom_id"] for text in path.read_bytes().splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize("content", [b"a letter", b"a letter\n", b'{"id": 1}\n', b'{"a'])
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: bytes):
    path = tmp_path / "letter"
    path.write_bytes(content)

    with pytest.raises(SettingsError, match="no results"):
        ResultFile(path)

    assert path.read_bytes() == content


def test_the_body_of_a_line_is_sent_as_it_stands():
    text = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt" : "x"}}'

    parsed = lines.parse(text, None)

    assert (parsed.custom_id, parsed.url, parsed.body) == ("a", "/v1/completions", b'{"prompt" : "x"}')
    with pytest.raises(Refused, match="url"):
        lines.parse(text, CHAT)
