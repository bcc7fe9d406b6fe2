"""A server with an application: its parts, its document, and calls that its handlers make."""

from __future__ import annotations

import time
from pathlib import Path

import gevent
import pytest

from corosrv.base.errors import HttpError, SettingsError
from corosrv.contracts import settings
from corosrv.serving.server import Server
from corosrv.workers.objects import ObjectContent
from tests.support.waiting import wait_until

APP = "tests/apps/plain.py:app"


def server(**chosen: object) -> Server:
    return Server(settings.load({"worker_app": APP} | chosen, environ={}))


def test_an_application_is_served_beside_a_model_and_a_predictor():
    one = server(model="synthetic:", predictor="deploy/predictor/predict.py:Predictor")

    assert [type(part).__name__ for part in one.context.parts] == [
        "ModelPart",
        "PredictorPart",
        "AppPart",
        "KservePart",
    ]


def test_errors_below_v2_have_the_protocols_shape():
    one = server(model="synthetic:")

    assert (
        type(one.context.part_of("/v2/nowhere").error_body(HttpError(404, "words"), "/v2/nowhere")).__name__
        == "KserveError"
    )
    assert type(one.context.part_of("/v1/nowhere")).__name__ == "ModelPart"


def test_an_application_alone_answers_every_unknown_path_in_the_protocols_shape():
    one = server()

    assert (
        type(one.context.part_of("/nowhere").error_body(HttpError(404, "words"), "/nowhere")).__name__ == "KserveError"
    )


def test_without_v2_its_paths_are_not_there():
    one = server(v2=False)

    assert one.parts.kserve is None
    assert not [blueprint for part in one.context.parts for blueprint in part.blueprints()]


def test_the_management_port_needs_a_token(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret")

    with pytest.raises(SettingsError, match="COROSRV_MGMT_TOKEN_FILE"):
        server(mgmt_port=0)
    server(mgmt_port=0, mgmt_token_file=str(token))


def test_expired_objects_go_although_nobody_reads_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corosrv.serving.apps._SWEEP", 0.001)
    part = server().parts.app
    assert part is not None
    part.objects.create(ObjectContent(b"old"), "", time.monotonic() - 60, ttl_s=59)
    part.objects.create(ObjectContent(b"new"), "", time.monotonic())

    sweeping = gevent.spawn(part._sweep)

    wait_until(lambda: part.objects.stats.n_expired == 1)
    assert [ref.size for ref in part.objects.refs()] == [3]
    sweeping.kill()
