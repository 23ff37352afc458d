"""Logs: one JSON object a line, or text for people."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What was given to the log call as `extra`."""
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}


class TextFormatter(logging.Formatter):
    """Time, level, logger, message and what was given as `extra`, for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without an exception's traceback."""
        return " ".join([super().formatMessage(record), *(f"{k}={v}" for k, v in _extra(record).items())])


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extra(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure(level: str, form: str) -> None:
    """Sends all logs of the process to stderr. `form` is "json" or "text"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
