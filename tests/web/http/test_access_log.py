"""Lines of the access log, made of what web servers pass on."""

import io
import json

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import load
from corosrv.web.http.access_log import CLIENT_GONE, AccessLog


@pytest.fixture
def out():
    return io.StringIO()


def lines_of(out: io.StringIO) -> list[str]:
    return out.getvalue().split("\n")[:-1]


def environ(**members: str) -> dict[str, str]:
    return {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "10.0.0.1", "PATH_INFO": "/v1", **members}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("hostile", ["/\nforged", "/\x1b[2J", "/\u2028\u202e", "/\x00\x7f", "/?key=s3cret\n"])
def test_a_path_stays_within_its_line(out, form, hostile):
    log = AccessLog(form, None, out)
    log.end(log.begin(environ(RAW_URI=hostile)), 404, 0, "complete")

    (line,) = lines_of(out)
    assert line.isprintable()
    assert "s3cret" not in line


def test_members_that_are_not_known_are_left_out(out):
    log = AccessLog("json", None, out)
    trace = log.begin(environ(SCRIPT_NAME="/llm", QUERY_STRING="a=1"))
    trace.id = "r"
    log.end(trace, 499, None, CLIENT_GONE)

    line = json.loads(out.getvalue())
    assert (line["path"], line["bytes"], line["end"]) == ("/llm/v1?a=1", None, "client_gone")
    assert not {"key", "model", "trace"} & line.keys()


def test_values_with_blanks_are_quoted_in_text(out):
    log = AccessLog("text", None, out)
    trace = log.begin(environ())
    trace.key = 'ann "a" smith'
    trace.name_model("m model=x")
    log.end(trace, 200, 5, "complete")

    assert lines_of(out)[0].endswith('complete id=- key="ann \\"a\\" smith" model="m model=x"')


def test_a_log_that_nobody_takes_stops_no_request():
    class Full(io.StringIO):
        def flush(self):
            raise OSError("the disk is full")

    out = Full()
    log = AccessLog("text", None, out)

    log.end(log.begin(environ()), 200, 0, "complete")

    assert len(lines_of(out)) == 1


def test_a_request_without_a_span_has_no_trace_and_no_headers():
    trace = AccessLog("off", None).begin(environ())

    assert trace.begin("part", {}) is trace
    assert (trace.trace_id, trace.headers()) == ("", ())


@pytest.mark.parametrize(
    ("word", "log_format", "form"),
    [("", "text", "off"), ("0", "json", "off"), ("1", "text", "text"), ("1", "json", "json"), ("json", "text", "json"),
     ("text", "json", "text"), ("off", "json", "off")],
)  # fmt: skip
def test_its_form_is_chosen_by_a_word_or_by_that_of_other_lines(word, log_format, form):
    settings = load(
        environ={"COROSRV_MODEL": "synthetic:", "COROSRV_ACCESS_LOG": word, "COROSRV_LOG_FORMAT": log_format}
    )

    assert settings.server.access_log_form == form


def test_files_may_switch_it_with_true_and_false(tmp_path):
    file = tmp_path / "corosrv.toml"
    file.write_text('model = "synthetic:"\naccess_log = true\n')

    assert load({}, environ={}, file=file).server.access_log_form == "text"


def test_another_word_is_refused():
    with pytest.raises(SettingsError, match="COROSRV_ACCESS_LOG must be 'off', 'text', 'json', '0' or '1', not 'loud'"):
        load(environ={"COROSRV_ACCESS_LOG": "loud"})
