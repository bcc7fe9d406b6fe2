import re
import signal

import gevent
import pytest
from gevent import subprocess
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import InvalidInput, TooBusy
from corosrv.dialects.predictions import values
from corosrv.dialects.predictions.values import InputSchema, Patterns
from corosrv.worker import Input
from corosrv.workers.worker.signatures.signature import document, read

ENDLESS = "^(a+)+$"
VICTIM = "a" * 40 + "b"


def note_processes(monkeypatch) -> list[subprocess.Popen]:
    """The processes that run patterns from here on."""
    started: list[subprocess.Popen] = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            started.append(self)

    monkeypatch.setattr(values, "Popen", Noted)
    return started


@pytest.mark.parametrize("pattern", ["^[a-z0-9-]{1,64}$", "colou?r", r"^\d+x\d+$", r"^(?:png|jpe?g)$", r"^[(+*]\(\+"])
def test_harmless_patterns_are_run_at_once(pattern):
    assert Patterns().try_search(pattern, "640x480") is (re.search(pattern, "640x480") is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (ENDLESS, VICTIM),
        ("(a|a)*$", VICTIM),
        ("(?:a?){30}a{30}", "a" * 30),
        (r"^(\w+\s?)*$", VICTIM),
        ("(?=(a+)+b)", VICTIM),
        (r"(a)\1", "aa"),
        ("(?x) (a+) +$", VICTIM),
        ("a*a*a*a*a*b", "a" * 1000),
        (".*b", "a" * 100_000),
    ],
)
def test_patterns_that_might_take_long_are_not(pattern, text):
    assert Patterns().try_search(pattern, text) is None


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of patterns that may mean something else one day
@settings(deadline=None)
@given(st.text("ab+*?()|{},12[]^$.\\", max_size=8), st.text("ab", max_size=12))
def test_what_is_run_at_once_is_what_python_finds(pattern, text):
    try:
        expected = re.search(pattern, text) is not None
    except re.error:
        return

    assert Patterns().try_search(pattern, text) in (expected, None)


def test_slow_patterns_are_run_too_and_those_without_end_are_given_up(monkeypatch):
    monkeypatch.setattr(values, "TIME_LIMIT", 0.5)
    pairs = [(ENDLESS, "aaa"), (ENDLESS, "aab"), (ENDLESS, VICTIM), (ENDLESS, "aaa")]

    assert Patterns().search(pairs) == [True, False, None, None]


def test_the_server_goes_on_while_a_pattern_is_run(monkeypatch):
    monkeypatch.setattr(values, "TIME_LIMIT", 0.3)
    running = gevent.spawn(Patterns().search, [(ENDLESS, VICTIM)])
    n_beats = 0

    while not running.ready():
        gevent.sleep(0.001)  # the heartbeat of everything else
        n_beats += 1

    assert running.get(timeout=5) == [None]
    assert n_beats > 5


def test_a_process_that_could_not_run_says_nothing_of_the_input(monkeypatch):
    monkeypatch.setattr(values, "PATIENCE", 0.3)
    started = note_processes(monkeypatch)
    running = gevent.spawn(Patterns().search, [(ENDLESS, VICTIM)])
    with gevent.Timeout(5):
        while not started:
            gevent.idle()

    started[0].send_signal(signal.SIGSTOP)

    with pytest.raises(TooBusy):
        running.get(timeout=5)


def test_a_pause_of_the_process_costs_no_answer(monkeypatch):
    monkeypatch.setattr(values, "TIME_LIMIT", 0.3)
    started = note_processes(monkeypatch)
    running = gevent.spawn(Patterns().search, [(ENDLESS, "aaa"), (ENDLESS, "aab")])
    with gevent.Timeout(5):
        while not started:
            gevent.idle()
    started[0].send_signal(signal.SIGSTOP)
    gevent.sleep(0.6)  # twice as long as it may compute

    started[0].send_signal(signal.SIGCONT)

    assert running.get(timeout=10) == [True, False]


def test_a_process_that_is_killed_says_nothing_of_the_input(monkeypatch):
    started = note_processes(monkeypatch)
    running = gevent.spawn(Patterns().search, [(ENDLESS, VICTIM)])
    with gevent.Timeout(5):
        while not started:
            gevent.idle()

    started[0].kill()

    with pytest.raises(TooBusy):
        running.get(timeout=5)


def test_a_request_that_is_given_up_leaves_no_process(monkeypatch):
    monkeypatch.setattr(values, "TIME_LIMIT", 30)
    started = note_processes(monkeypatch)
    running = gevent.spawn(Patterns().search, [(ENDLESS, VICTIM)])
    with gevent.Timeout(5):
        while not started:
            gevent.idle()

    running.kill(timeout=5)

    assert started[0].poll() is not None


def test_a_pattern_within_a_union_is_run_too():
    def run(x: int | str = Input(regex=ENDLESS)): ...

    schema = InputSchema(document(read(run)))

    assert schema.check({"x": "aa"}) == {"x": "aa"}
    with pytest.raises(InvalidInput, match="must match the pattern"):
        schema.check({"x": "aab"})


def test_an_input_whose_pattern_does_not_end_is_refused_with_its_place(monkeypatch):
    def run(x: list[str] = Input(regex=ENDLESS)): ...

    monkeypatch.setattr(values, "TIME_LIMIT", 0.3)
    schema = InputSchema(document(read(run)))

    assert schema.check({"x": ["aa"]}) == {"x": ["aa"]}
    with pytest.raises(InvalidInput) as raised:
        schema.check({"x": ["aab", VICTIM]})
    assert [error["loc"][2:] for error in raised.value.errors] == [["x", 0], ["x", 1]]
    assert "in time" in raised.value.errors[1]["msg"]
