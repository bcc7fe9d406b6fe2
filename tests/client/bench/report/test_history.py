"""Reports that are kept, and what has changed since."""

from __future__ import annotations

import msgspec
import pytest

from corosrv.client.bench import history
from corosrv.client.bench.report import Report
from tests.client.bench.reports import report, section, server


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def taken(moment: str, *speeds: float, **chosen: object) -> Report:
    made = report(section(server("corosrv", *speeds), clients=(8,), **chosen))
    return Report(msgspec.structs.replace(made.machine, taken=moment), made.sections)


def test_the_last_one_of_the_same_load_is_found():
    for number, speed in enumerate((10.0, 20.0)):
        history.save(taken(f"2026-01-0{number + 1}T00:00:00+00:00", speed))
    history.save(taken("2026-01-03T00:00:00+00:00", 30.0, mix="long"))
    found = history.find(history.LAST, taken("2026-01-04T00:00:00+00:00", 5.0).sections[0])

    assert isinstance(found, Report)
    assert found.machine.taken == "2026-01-02T00:00:00+00:00"


def test_two_of_one_second_are_both_kept():
    paths = [history.save(taken("2026-01-01T00:00:00+00:00", 10.0)) for _ in range(2)]

    assert len(set(paths)) == 2
    assert len(history.saved()) == 2


def test_what_is_no_report_among_them_is_left_out():
    path = history.save(taken("2026-01-01T00:00:00+00:00", 10.0))
    path.with_name("torn.json").write_text('{"machine": ')

    assert len(history.saved()) == 1


def test_without_any_the_words_say_how_to_make_one():
    assert "--save" in history.find(history.LAST, section(server("a", 1.0)))
    assert "is not a report" in history.find(__file__, section(server("a", 1.0)))


def test_a_change_beyond_chance_is_told_from_one_within():
    before = taken("2026-01-01T00:00:00+00:00", 10.0, 10.1, 9.9, 10.0, 10.0)
    slower = taken("2026-01-02T00:00:00+00:00", 8.0, 8.1, 7.9, 8.0, 8.0)
    same = taken("2026-01-02T00:00:00+00:00", 9.9, 10.2, 9.8, 10.1, 10.0)
    lines = list(history.lines(slower.sections[0], before, slower))

    assert any("tokens/s" in line and "0.80 x" in line and line.endswith("worse") for line in lines)
    assert any("TTFT p50" in line and "1.25 x" in line and line.endswith("worse") for line in lines)
    assert history.is_worse(slower.sections[0], before)
    assert not history.is_worse(same.sections[0], before)
    assert not history.is_worse(before.sections[0], slower)
    assert any(line.endswith("better") for line in history.lines(before.sections[0], slower, before))


def test_another_machine_and_another_load_are_named():
    before = taken("2026-01-01T00:00:00+00:00", 10.0)
    now = taken("2026-01-02T00:00:00+00:00", 10.0, mix="long")
    elsewhere = Report(msgspec.structs.replace(before.machine, cores=999), before.sections)

    assert "nothing is the same" in list(history.lines(now.sections[0], before, now))[-1]
    assert "another machine" in list(history.lines(before.sections[0], elsewhere, before))[1]


def test_an_interval_holds_the_ratio_and_grows_with_the_spread():
    low, high = history.interval([10.0, 10.2, 9.8, 10.1, 9.9], [5.0, 5.1, 4.9, 5.0, 5.0])
    wide_low, wide_high = history.interval([8.0, 13.0, 7.0, 10.0, 12.0], [5.0, 5.1, 4.9, 5.0, 5.0])

    assert 1.9 < low < 2.0 < high < 2.1
    assert wide_low < low
    assert wide_high > high


def test_a_drawing_goes_through_all_runs_of_the_load():
    now = taken("2026-01-02T00:00:00+00:00", 20.0)
    drawn = history.drawing(now.sections[0], [taken("2026-01-01T00:00:00+00:00", 10.0), now])

    assert drawn.count("<circle") == 2
    assert "2026-01-01T00:00:00+00:00" in drawn
    assert history.drawing(now.sections[0], [now]) == ""
