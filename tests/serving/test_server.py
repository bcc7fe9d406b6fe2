"""A server's parts: which of them a client's path belongs to."""

from __future__ import annotations

import msgspec
import pytest

from corosrv import settings
from corosrv.errors import HttpError
from corosrv.serving.server import Server

PREDICTOR = "deploy/predictor/predict.py:Predictor"


def server(**chosen: str) -> Server:
    return Server(settings.load(chosen, environ={}))


@pytest.mark.parametrize(
    ("chosen", "path", "members"),
    [
        ({"model": "synthetic:"}, "/nowhere", {"message", "type", "param", "code"}),
        ({"model": "synthetic:"}, "/predictions/1/2", {"message", "type", "param", "code"}),
        ({"model": "synthetic:", "predictor": PREDICTOR}, "/v1/nowhere", {"message", "type", "param", "code"}),
        ({"model": "synthetic:", "predictor": PREDICTOR}, "/predictions/1/2", set()),
        ({"predictor": PREDICTOR}, "/predictions/1/2", set()),
        ({"predictor": PREDICTOR}, "/nowhere", set()),
    ],
)
def test_an_error_has_the_shape_of_the_part_that_the_path_belongs_to(chosen, path, members):
    error = msgspec.to_builtins(server(**chosen).part_of(path).error_body(HttpError(404, "words"), path))["error"]

    assert error == "words" if not members else set(error) == members
