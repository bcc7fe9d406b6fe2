"""Writes a line of log for each prediction that ended, beside those of generating jobs."""

from __future__ import annotations

import json
import logging

from corosrv.dialects.predictions.prediction import Prediction, Status
from corosrv.web.http.reply import line

log = logging.getLogger("corosrv.jobs")

_TEXT = (
    "prediction %(id)s of %(predictor)s ended: %(outcome)s, %(n_outputs)d outputs, %(predict_ms)d ms of predicting, "
    "%(seconds).2f s in all"
)


def log_prediction(prediction: Prediction, predictor: str, as_json: bool) -> None:
    """Writes the line of a prediction that has ended. Those that succeeded are for the debug level.

    Tells of an error its type alone: its message may hold what a client sent.
    """
    level = logging.DEBUG if prediction.status is Status.SUCCEEDED else logging.INFO
    if not log.isEnabledFor(level):
        return
    members = {
        "id": line(prediction.id),
        "predictor": predictor,
        "outcome": prediction.error_type or prediction.status.value,
        "n_outputs": prediction.n_outputs,
        "predict_ms": round(1000 * (prediction.predict_time or 0.0), 1),
        "seconds": round(prediction.seconds, 3),
    }
    log.log(level, "%s", json.dumps({"event": "prediction_ended", **members}) if as_json else _TEXT % members)
