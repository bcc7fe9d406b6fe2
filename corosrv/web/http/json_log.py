"""Writes lines of log as JSON: corosrv's own, and those of gunicorn's master, workers and access log."""

from __future__ import annotations

import json
import logging
from typing import Any

from gunicorn.glogging import Logger


class JsonFormatter(logging.Formatter):
    """Makes a line of JSON of a record. A message that is an event as JSON already keeps its members."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line: time, level, process and logger, then the event's members or the message."""
        members: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "logger": record.name,
        }
        message = record.getMessage()
        members |= _event(message) or {"message": message}
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False)


def _event(message: str) -> dict[str, Any] | None:
    if not message.startswith('{"event": '):
        return None
    try:
        event = json.loads(message)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


class JsonLogger(Logger):  # type: ignore[misc]
    """gunicorn's logger, whose lines are JSON: `gunicorn --logger-class corosrv.http.json_log.JsonLogger`."""

    def setup(self, cfg: Any) -> None:
        """Sets the handlers up as gunicorn does, and then their form."""
        super().setup(cfg)
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            handler.setFormatter(JsonFormatter())
