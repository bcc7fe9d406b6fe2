"""What is said about figures: in a file, on a terminal, on a page."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from corosrv.base.errors import BenchError
from corosrv.client.bench import page, words
from corosrv.client.bench.compare import Progress, line
from corosrv.client.bench.report import look, read, write
from corosrv.client.bench.round import Counts
from tests.client.bench.reports import failing, pair, report, section, server


def row(text: str, label: str) -> list[str]:
    """The cells of the first line that begins with a label."""
    (found, *_) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return found.strip().removeprefix(label).split()


def test_a_report_is_read_as_it_was_written(tmp_path):
    written = report()
    write(written, tmp_path / "report.json")

    assert read(tmp_path / "report.json") == written


@pytest.mark.parametrize("content", [None, b"{", b'{"sections": []}'])
def test_what_is_no_report_is_refused(tmp_path, content):
    file = tmp_path / "report.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(BenchError, match="not a report"):
        read(file)


def test_a_table_has_medians_spreads_and_ratios():
    text = words.text(pair())

    assert row(text, "1 clients (8 requests)") == ["corosrv", "other", "ratio"]
    assert row(text, "tokens/s") == ["145", "72.7", "2.00"]
    assert row(text, "slowest-fastest round") == ["131-160", "65.5-80.0"]
    assert row(text, "TTFT") == ["corosrv", *["100"] * 4, "111"]


def test_one_server_has_no_ratio():
    text = words.text(section(server("corosrv", 20.0)))

    assert row(text, "tokens/s") == ["145"]
    assert "ratio" not in text.split("\n\n")[1]


def test_a_table_tells_what_failed_and_in_which_words():
    text = words.text(section(failing()))

    assert "failed, broken: 2 (2 HTTP 500: out of <memory>)" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counted_by": "events"}, "counted by events"),
        ({"early_stops": 2}, "corosrv: 2 streams stopped"),
    ],
)
def test_what_limits_a_figure_is_noted(change, said):
    seen = server("corosrv", 20.0)
    seen.rounds = [msgspec.structs.replace(one, **change) for one in seen.rounds]

    assert said in "\n".join(words.notes(section(seen)))
    assert said not in "\n".join(words.notes(section(server("corosrv", 20.0))))


def test_a_client_that_is_too_busy_says_so():
    seen = server("corosrv", 20.0)
    busy = msgspec.structs.replace(seen.rounds[0].cpu, core=0.93)
    seen.rounds = [msgspec.structs.replace(seen.rounds[0], cpu=busy)]

    assert "corosrv: this client used 93 % of a core" in "\n".join(words.notes(section(seen)))


def test_a_busy_machine_is_doubted():
    machine = msgspec.structs.replace(look(), cores=2, load_average=0.9)

    assert words.doubts(machine) == ""
    assert "busy" in words.doubts(msgspec.structs.replace(machine, load_average=1.0))


def test_an_interruption_and_free_lengths_are_noted():
    seen = pair()
    seen.is_interrupted, seen.is_forced = True, False

    notes = "\n".join(words.notes(seen))
    assert "Interrupted" in notes
    assert "left to the model" in notes


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0.1234, "0.12"), (9.996, "10.0"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits_or_so(value, said):
    assert words.number(value) == said


class Tags(HTMLParser):
    """Checks that what is opened is closed, and keeps what is fetched from elsewhere."""

    VOID = ("meta", "line", "rect", "circle", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_page_is_well_formed_and_says_what_the_table_says():
    tags = Tags()
    tags.feed(page.page(report(pair(), section(failing()))))

    assert tags.open == []
    assert {"corosrv bench --url URL", "145", "2.00", "Short <chats> & more"} <= set(tags.text)
    assert "2 (2 HTTP 500)" in tags.text


def test_a_page_needs_nothing_from_elsewhere():
    html = page.page(report())

    links = re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?[^"')]+|https?://[^"'\s<]+""", html)
    assert set(links) <= {"http://www.w3.org/2000/svg"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_is_written_over():
    out = Terminal()
    progress = Progress(out)
    progress.begin("8 clients, round 1/5, corosrv", 8)(Counts(done=3, failed=1, open=5, events=60))
    progress.close()

    assert "8 clients, round 1/5, corosrv: 3/8 done, 1 failed, 5 open" in out.getvalue()
    assert "\n" not in out.getvalue()
    assert out.getvalue().endswith("\x1b[K")


def test_progress_is_silent_where_nobody_watches(tmp_path: Path):
    out = io.StringIO()
    Progress(out).begin("title", 8)(Counts())

    assert out.getvalue() == ""


def test_progress_tells_the_speed_so_far():
    assert line("x", 4, Counts(events=60), 2.0).endswith("0 open, 30 tokens/s")
