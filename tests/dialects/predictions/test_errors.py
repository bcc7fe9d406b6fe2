"""Errors in the shape of predictions: a status for each, and a body that says what, or which fields."""

import pytest

from corosrv.base import errors
from corosrv.dialects.predictions import routes as wire
from corosrv.dialects.predictions.health import PredictorHealth

FAULT = {"loc": ["body", "input", "n"], "msg": "Field required", "type": "value_error.missing"}

TABLE = [
    (errors.InvalidInput([FAULT]), 422, {"detail": [FAULT]}),
    (errors.NotStreamed(), 406, {"error": str(errors.NotStreamed())}),
    (errors.IdTaken("m"), 409, {"error": "m", "status": "failed"}),
    (errors.TooManyReaders(8), 429, {"error": str(errors.TooManyReaders(8))}),
    (errors.NoCapacity(), 409, {"error": str(errors.NoCapacity()), "status": "failed"}),
    (errors.WorkerGone("m"), 503, {"error": "m", "status": "failed"}),
    (errors.Starting("m"), 503, {"error": "m", "status": "failed"}),
    (errors.ShuttingDown("m"), 503, {"error": "m", "status": "failed"}),
    (errors.NotFound("m"), 404, {"error": "m"}),
    (errors.BodyTooLarge(8), 413, {"error": str(errors.BodyTooLarge(8))}),
    (errors.UnsupportedMedia("m"), 415, {"error": "m"}),
    (errors.Refused("m"), 400, {"error": "m"}),
    (errors.Unauthorized("m"), 401, {"error": "m"}),
    # Bugs of ours, wherever they come from.
    (errors.LoadError("m"), 500, {"error": "m"}),
    (errors.SignatureError("m"), 500, {"error": "m"}),
    (errors.InputFailed("m"), 500, {"error": "m"}),
    (errors.OutputFailed("m"), 500, {"error": "m"}),
    (errors.BadFrame("m"), 500, {"error": "m"}),
    (errors.ChannelClosed("m"), 500, {"error": "m"}),
    (
        errors.IllegalTransition("it", PredictorHealth.BUSY, PredictorHealth.UNKNOWN),
        500,
        {"error": "it cannot go from BUSY to UNKNOWN"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "body"), TABLE, ids=lambda value: type(value).__name__)
def test_an_error_has_its_status_and_shape(error, status, body):
    assert (error.status, wire.error_body(error)) == (status, body)


def test_a_full_server_says_so_in_the_word_that_clients_look_for():
    assert "capacity" in str(errors.NoCapacity()).lower()
