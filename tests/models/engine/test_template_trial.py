"""A chat template is tried in a child process, once: whatever it does there, the server lives and says so."""

import json
import os
import platform
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import gevent
import msgspec
import pytest

from corosrv.base.errors import ModelFailed, NotSupported, Refused
from corosrv.contracts.settings import ModelSettings
from corosrv.formats.callformats.description import ArgumentRow, CallFormat, Notation, Spelling
from corosrv.models.engine import Engine, template_verdicts
from corosrv.models.engine.sandbox import TemplateLimits
from corosrv.models.engine.template_trial import MAX_FINDINGS, TemplateCase, TemplateFindings, try_template
from corosrv.models.engine.template_verdicts import template_findings
from corosrv.models.engine.traits import Traits
from tests.models.engine.test_sandbox import NINES, grow
from tests.models.engine.test_typed_content import PARTS_ALONE
from tests.support import children
from tests.support.engines import answer, job, opened
from tests.support.gguf import write_llama
from tests.support.templates import CHATML, LLAMA, QWEN, SPECIAL, conversation
from tests.support.waiting import eventually, wait_until

TIMEOUT = 60.0  # seconds
HUGE = 10**15
NO_LIMITS = TemplateLimits(steps=HUGE, seconds=1e9, characters=HUGE, made_bytes=HUGE, source=HUGE, tokens=HUGE)
ENDLESS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
CALLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] %}<call={{ call.function.name"
    " }}>{% for name, value in call.function.arguments|dictsort %}<arg={{ name }}>{{ value }}</arg>{% endfor %}</call>"
    "{% endfor %}|{% endfor %}"
)


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path) -> Path:
    """Returns the file that findings are kept in, which is this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "corosrv" / "templates.json"


@pytest.mark.parametrize("source", [CHATML, LLAMA, QWEN, CALLS, PARTS_ALONE])
def test_a_child_finds_out_what_a_look_in_this_process_does(source):
    case = TemplateCase(source, SPECIAL, end_texts=("<|im_end|>", "</s>"), hidden_texts=("<call=",))

    assert template_findings(case) == try_template(case)


def test_the_abilities_are_among_the_findings():
    found = template_findings(TemplateCase(CALLS, SPECIAL, hidden_texts=("<call=", "<unused>")))

    assert found.traits.shows_calls
    assert isinstance(row := found.traits.call_format.arguments, ArgumentRow)
    assert (row.opening, row.value_end, row.constants, row.sorts_keys) == ("<arg=", "</arg>", Spelling.PYTHON, True)
    assert found.traits.marks == ("<call=",)
    assert not found.reads_parts
    assert template_findings(TemplateCase(PARTS_ALONE, SPECIAL)).reads_parts


@pytest.mark.parametrize("arguments", [None, Notation("'", True), ArgumentRow("", "=", "", ";", " ", "")])
def test_findings_are_the_same_once_they_were_written_down(arguments):
    form = CallFormat("<a>", "</a>", "", arguments=arguments)
    findings = TemplateFindings(traits=Traits(call_format=form))

    assert msgspec.json.decode(msgspec.json.encode(findings), type=TemplateFindings) == findings


def test_findings_are_remembered_for_this_template_alone(monkeypatch):
    case = TemplateCase(CHATML, SPECIAL)
    findings = template_findings(case)

    monkeypatch.setattr(template_verdicts.sys, "executable", "/nothing/to/start")

    assert template_findings(case) == findings
    for other in (TemplateCase(CHATML + " ", SPECIAL), TemplateCase(CHATML, {}), TemplateCase(CHATML, SPECIAL, ("a",))):
        with pytest.raises(OSError, match="/nothing/to/start"):
            template_findings(other)


def test_findings_depend_on_the_code_that_makes_them():
    assert {"jinja_template.py", "template_trial.py", "learn.py"} <= {
        path.name for path in template_verdicts.code_files()
    }


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "cannot be used: Expected an expression"),
        ("{{ 1 }}" * 300_000, "cannot be used: it is longer than"),
        ("{{ '\ud800' }}", "cannot be used: it is no UTF-8"),
        ("{% for m in messages %}{{ '\\ud800' ~ m.content ~ '</think>' }}{% endfor %}", "it writes what is no Unicode"),
        ("{% for m in messages %}" + "x" * MAX_FINDINGS + "<think>{{ m.reasoning_content }}</think>{{ m.content }}"
         "{% endfor %}", "it writes too much around calls"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_refused_in_words(source, words):
    with pytest.raises(Refused, match=words) as refused:
        template_findings(TemplateCase(source, SPECIAL))

    assert refused.value.code == "invalid_template"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (ENDLESS, "more than 3 s of processor time"),
        (grow("n.s ~ n.s"), "more than 512 MiB of memory"),
        ("{{ 1 }}" * 300_000, "more than (3 s of processor time|512 MiB of memory)"),
    ],
    ids=["a loop", "a text that doubles", "a long template"],
)
def test_a_template_that_no_sandbox_stops_ends_the_child_alone_and_once(monkeypatch, source, words):
    case = TemplateCase(source, SPECIAL, limits=NO_LIMITS)

    with pytest.raises(Refused, match=f"cannot be used: a trial of it takes {words}"):
        template_findings(case)

    monkeypatch.setattr(template_verdicts.sys, "executable", "/nothing/to/start")
    with pytest.raises(Refused, match=words):
        template_findings(case)


def found_to_show_words(source: str) -> bool:
    try:
        return template_findings(TemplateCase(source, SPECIAL)).traits.has_system
    except Refused:
        return False


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ 1.5|round({NINES}, 'ceil') }}}}",
        "{{ (1).to_bytes(3000000000, 'big') }}",
        "{{ [1]|map(attribute='a" + ".a" * 1_000_000 + "')|list }}",
        "{{ 1 }}" * 300_000,
        grow("n.s ~ n.s", first="'{0:9999}'")
        .replace("range(99)", "range(15)")
        .replace("{{ n.s }}", "{{ n.s.format(1) }}"),
    ],
    ids=["round", "to_bytes", "a path of a million parts", "many outputs", "many widths"],
)
def test_a_step_of_any_size_is_over_within_seconds(source):
    began = time.monotonic()

    shows_words = found_to_show_words(source)

    assert not shows_words
    assert time.monotonic() - began < TIMEOUT


_READ = {"x86_64": 0, "aarch64": 63}  # numbers of the system call


def end_child_with(monkeypatch, tmp_path, statement: str) -> None:
    """Has the next child run a statement at its start."""
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal, sys\n{statement}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize(
    ("statement", "words", "is_kept"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "Python dies of it with SIGSEGV", True),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed", False),
        ("print('no room', file=sys.stderr, flush=True); os._exit(9)", "ended with status 9: no room", False),
    ],
)
def test_the_end_of_a_child_is_told_and_kept_where_the_template_is_to_blame(
    monkeypatch, tmp_path, store, statement, words, is_kept
):
    end_child_with(monkeypatch, tmp_path, statement)

    with pytest.raises(Refused, match=f"cannot be used: .*{words}"):
        template_findings(TemplateCase(CHATML, SPECIAL))

    assert store.exists() is is_kept


def test_a_child_that_takes_too_long_is_tried_again_and_given_up(monkeypatch, store):
    monkeypatch.setattr(template_verdicts, "TIMEOUT", 0.001)

    with pytest.raises(Refused, match=r"did not end in 0\.001 s, 2 times"):
        template_findings(TemplateCase(CHATML, SPECIAL))

    assert not store.exists()


def test_a_child_has_no_keys_of_the_server(monkeypatch, tmp_path):
    end_child_with(monkeypatch, tmp_path, "open(os.environ['SEEN'], 'w').write(' '.join(os.environ))")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("COROSRV_API_KEYS", "secret")

    template_findings(TemplateCase(CHATML, SPECIAL))

    seen = (tmp_path / "seen").read_text().split()
    assert "SEEN" in seen
    assert "COROSRV_API_KEYS" not in seen


def test_a_child_starts_without_hub_and_native_core():
    program = """
        import sys, corosrv.models.engine.template_trial
        print(*sorted({"gevent", "cffi", "flask", "corosrv._native", "corosrv.contracts.jobs"} & set(sys.modules)))
    """

    assert children.output(program) == ""


def test_a_child_ends_with_its_server():
    reading, writing = os.pipe()  # open on both sides to the end: the child would go on waiting for its case
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'corosrv.models.engine.template_trial'],"
        " stdin=int(sys.argv[1]))\nprint(child.pid, flush=True)\nchild.wait()\n"
    )
    command = [sys.executable, "-c", program, str(reading)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[reading]) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        pidfd = os.pidfd_open(pid)
        eventually(lambda: _reads_input(pid), TIMEOUT, "the child waits for its case")

        server.kill()

        ended, _, _ = select.select([pidfd], [], [], TIMEOUT)
        if not ended:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for descriptor in (reading, writing, pidfd):
        os.close(descriptor)
    assert ended


def _reads_input(pid: int) -> bool:
    """Returns whether a process is in a read of its standard input."""
    call = Path(f"/proc/{pid}/syscall").read_text().split()
    return call[:2] == [str(_READ[platform.machine()]), "0x0"]


def test_a_model_s_template_is_tried_before_the_engine_uses_it(store):
    with opened(chat_template=CHATML) as engine:
        assert "chat" in engine.card(None).capabilities
    kept = json.loads(store.read_text())
    refusals = {key: {"refusal": "the model's chat template cannot be used: it is bad"} for key in kept}
    store.write_text(json.dumps(refusals))

    with opened(chat_template=CHATML) as engine:
        assert len(kept) == 1
        assert len(answer(engine, job())) > 0
        with pytest.raises(NotSupported, match="chat template cannot be used: it is bad"):
            engine.submit(job(prompts=(conversation("Hi"),)))


def test_closing_while_a_template_is_tried_ends_the_load(tmp_path):
    model = write_llama(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": "{% if %}"})
    engine = Engine(ModelSettings(model=str(model), slots=1, ctx=128, threads=1))
    loading = gevent.spawn(engine.open)
    wait_until(lambda: children.children("corosrv.models.engine.template_trial") or loading.ready(), "a child tries it")

    engine.close()

    with pytest.raises(ModelFailed, match="closed"):
        loading.get(timeout=TIMEOUT)


def test_templates_of_corosrv_and_of_libllama_need_no_trial(store):
    for name in ("", "llama3"):
        with opened(chat_template=name) as engine:
            assert "chat" in engine.card(None).capabilities

    assert not store.exists()
