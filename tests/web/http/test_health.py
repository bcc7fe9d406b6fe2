"""The server's state, as probes see it."""

import pytest
from flask import Flask

from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from corosrv.web.http import health
from tests.support.engines import FAST, SLOW, endless, opened
from tests.support.waiting import eventually


def get(engine: Engine, path: str = "/health"):
    app = Flask(__name__)
    app.register_blueprint(health.blueprint(engine))
    return app.test_client().get(path)


def missing_model() -> Engine:
    engine = Engine(ModelSettings(model="/no/such/model.gguf"))
    with pytest.raises(Exception, match="does not exist"):
        engine.open()
    return engine


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_an_engine_that_takes_jobs_is_ok(engine, path):
    answer = get(engine, path)

    assert (answer.status_code, answer.json) == (200, {"status": "ok", "state": "ready"})


def test_an_engine_that_loads_is_starting():
    answer = get(Engine(ModelSettings(model=FAST)))

    assert (answer.status_code, answer.json["status"]) == (503, "starting")
    assert answer.headers["Retry-After"] == "1"
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}


def test_an_engine_that_could_not_load_has_failed_for_good():
    answer = get(missing_model())

    assert (answer.status_code, answer.json["status"]) == (503, "failed")
    assert "model.gguf" in answer.json["error"]["message"]
    assert "Retry-After" not in answer.headers


def test_an_engine_that_ends_is_draining(engine):
    engine.stop_accepting()

    answer = get(engine)

    assert (answer.status_code, answer.json["status"]) == (503, "draining")


def test_a_closed_engine_is_draining():
    with opened() as engine:
        pass

    assert (get(engine).status_code, get(engine).json["status"]) == (503, "draining")


def test_an_engine_whose_slots_are_all_taken_is_busy_and_still_ok():
    with opened(model=SLOW, slots=1) as engine, engine.submit(endless()) as running:
        running.take(timeout=20)  # it runs, and nothing waits
        eventually(lambda: get(engine).json["state"] == "busy")  # what runs is counted behind its first step

        assert get(engine).status_code == 200
