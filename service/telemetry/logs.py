"""Formats logs: one JSON object a line, or text for people."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message", "taskName"}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields that the log call passed as `extra`."""
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}


class TextFormatter(logging.Formatter):
    """Writes time, level, logger, message and the fields of `extra` as text for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the line without the traceback of an exception."""
        return " ".join([super().formatMessage(record), *(f"{k}={v}" for k, v in _extra(record).items())])


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, message and the fields of `extra` as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line of JSON."""
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
