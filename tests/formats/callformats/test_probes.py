"""Probes of chat templates: what they cost at most."""

from __future__ import annotations

import pytest

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.formats.callformats.learn_answer import USER, Probe


@pytest.mark.parametrize(
    ("error", "n_renderings"),
    [
        pytest.param(TemplateTooCostly("it takes long"), 1, id="beyond a limit"),
        pytest.param(Refused("roles must alternate"), 3, id="refused"),
    ],
)
def test_a_template_is_asked_no_more_once_it_has_passed_a_limit(error, n_renderings):
    renderings = []

    def rendering(messages, **_):
        renderings.append(messages)
        raise error

    probe = Probe(rendering, seconds=60)

    assert [probe.render([USER]) for _ in range(3)] == ["", "", ""]
    assert len(renderings) == n_renderings
