"""The load tests' own view of a server."""

import pytest

from tests.load.process import serving

pytestmark = pytest.mark.slow


def test_a_metric_is_the_sum_of_its_samples_or_the_one_of_its_labels() -> None:
    with serving({"MODEL": "synthetic:"}) as server:
        states = server.metric("corosrv_model_state")
        ready = server.metric('corosrv_model_state{model="synthetic",state="ready"}')
        steps = server.metric("corosrv_steps_total")
        with pytest.raises(KeyError):
            server.metric("corosrv_step")

    assert (states, ready, steps) == (1, 1, 0)
