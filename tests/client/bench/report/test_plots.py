"""Plots: read back as XML, because what a browser shows is what they say."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from corosrv.client.bench.plots import Drawing, LinearScale, LogScale, TailScale, plots, section_plots
from tests.client.bench.reports import failing, pair, report, section, server

SVG = "{http://www.w3.org/2000/svg}"


def parse(plot: str) -> ElementTree.Element:
    return ElementTree.fromstring(plot)


def texts(plot: str) -> list[str]:
    return [element.text or "" for element in parse(plot).iter(f"{SVG}text")]


def bars(plot: str, kind: str) -> list[float]:
    """The heights of one server's bars."""
    return [float(bar.attrib["height"]) for bar in parse(plot).iter(f"{SVG}rect") if bar.get("class") == f"p-{kind}"]


def test_every_section_has_its_plots_by_name():
    assert set(plots(report(pair(), section(server("a", 5.0), mix="shared"), pair()))) == {
        f"{name}-{what}" for name in ("short", "shared", "short-2") for what in ("tokens", "ttft", "itl")
    }


def test_bars_are_as_high_as_their_values():
    plot = section_plots(pair())["tokens"]

    (ours, _), (theirs, _) = bars(plot, "a"), bars(plot, "b")
    assert ours == pytest.approx(2 * theirs, rel=0.02)


def test_bars_are_labelled_with_values_names_and_ratios():
    seen = texts(section_plots(pair())["tokens"])

    assert {"corosrv", "other", "1 clients", "8 clients", "2.00 x"} <= set(seen)
    assert {"145", "72.7"} <= set(seen)


def test_curves_never_fall_and_stay_on_the_paper():
    for name in ("ttft", "itl"):
        root = parse(section_plots(pair())[name])
        lines = [line.attrib["points"] for line in root.iter(f"{SVG}polyline")]
        assert len(lines) == 4
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.split()]
            assert all(before[0] <= after[0] and before[1] >= after[1] for before, after in pairwise(points))
            assert all(0 < x < 760 and 0 < y < float(root.attrib["height"]) for x, y in points)


def test_curves_tell_median_and_p99():
    seen = texts(section_plots(section(server("a", 10.0)))["ttft"])

    assert seen.count("200") >= 4  # of two panels, both percentiles


def test_one_server_has_one_colour_and_no_ratio():
    plot = section_plots(section(server("a", 5.0)))["tokens"]

    assert bars(plot, "b") == []
    assert not [text for text in texts(plot) if text.endswith(" x")]


def test_what_failed_altogether_is_drawn_without_curves():
    drawn = section_plots(section(failing(), server("a", 5.0)))

    assert bars(drawn["tokens"], "a") == [0, 0]
    assert len(list(parse(drawn["itl"]).iter(f"{SVG}polyline"))) == 2


def test_without_rounds_there_is_no_plot():
    assert section_plots(section(server("a"))) == {}


def test_titles_are_escaped():
    drawing = Drawing(10, 10, 'a "b" <c>')
    drawing.text(0, 0, "x < y & z")

    assert texts(str(drawing)) == ["x < y & z"]


def test_dark_readers_get_every_colour_anew():
    light, dark = re.split(r"@media[^{]*\{", str(Drawing(1, 1, "")))

    classes = {found for found in re.findall(r"\.p-(\w+)", light) if found != "line"}
    assert classes == {found for found in re.findall(r"\.p-(\w+)", dark) if found != "line"}


def test_a_linear_scale_is_marked_at_round_numbers():
    scale = LinearScale(950.0, 100.0, 0.0)

    assert scale.ticks() == [0, 200, 400, 600, 800]
    assert (scale(0), scale(950)) == (100, 0)


@pytest.mark.parametrize(("low", "high"), [(0.001, 0.0011), (0.002, 0.4), (1e-5, 100.0)])
def test_a_logarithmic_scale_stays_within_and_is_marked_within(low, high):
    scale = LogScale(low, high, 100.0, 0.0)

    assert (scale(low), scale(high), scale(high * 9)) == (100, 0, 0)
    assert scale(math.sqrt(low * high)) == pytest.approx(50)
    assert all(low <= tick <= high for tick in scale.ticks())


def test_each_step_of_the_tail_takes_as_much_room():
    scale = TailScale(0.0, 400.0)

    assert [scale(share) for share in (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)] == [0, 100, 200, 300, 400, 400]
