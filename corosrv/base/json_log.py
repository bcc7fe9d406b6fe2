"""Lines of the log as JSON, in the processes of a server alike."""

from __future__ import annotations

import json
import logging
from typing import Any


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


def is_on(logger: logging.Logger) -> bool:
    """Returns whether a logger's lines are JSON in this process."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers)
